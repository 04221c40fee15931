"""Baselines: runs that were accepted, the files with their numbers, and comparisons with them."""
