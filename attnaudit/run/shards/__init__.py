"""Shards of a run: where they are measured and stored, so that a run can be resumed or divided among machines."""
