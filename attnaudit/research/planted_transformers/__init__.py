"""Planted Transformers: small classifiers with a known circuit. It determines which readings are faithful."""
