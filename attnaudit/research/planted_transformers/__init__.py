"""Planted Transformers: small classifiers whose circuit is known, so that it is known which readings are faithful."""
