"""Reproduce papers: train and audit the models of their tables, and compare the numbers with the published ones."""
