"""Comparison of two runs on the same data, for `attnaudit compare` and the report."""
