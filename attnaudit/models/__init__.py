"""Reference models and their training.

Importing the package does not import torch, but importing most of its modules does.
"""
