"""Planted models: small models whose attention is known to be right or wrong. One module per family of kinds."""
