"""Adapters for models that pool hidden states with attention."""
