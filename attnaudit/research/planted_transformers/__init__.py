"""Planted Transformers: small classifiers with a known circuit, which determines which readings are faithful."""
