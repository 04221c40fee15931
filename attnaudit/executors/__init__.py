"""Executors, which measure the shards of a run in several processes. They do not affect the numbers."""
