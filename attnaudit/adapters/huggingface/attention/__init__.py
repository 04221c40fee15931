"""The attention of a model: where it is, and how its weights are observed, recomputed or replaced in a forward pass.

Support for attention that is not found or not recorded correctly belongs here.
"""
