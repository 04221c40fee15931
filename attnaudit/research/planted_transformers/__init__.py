"""Planted Transformers: small classifiers with a known circuit. The circuit determines which readings are faithful."""
