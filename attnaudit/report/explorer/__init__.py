"""The explorer, a page with all instances of a run."""
