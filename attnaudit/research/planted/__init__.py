"""Planted models: small models whose attention is known to be faithful or unfaithful.

The folder `kinds` has one module for each kind of planted models. The other modules build, train and verify the models.
"""
