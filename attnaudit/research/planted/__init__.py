"""Planted models: small models whose attention is known to be faithful or unfaithful.

Each module with a `KINDS` tuple defines one kind of planted models, or several related kinds.
"""
