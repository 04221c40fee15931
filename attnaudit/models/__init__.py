"""Reference models and their trainer. The package imports no torch; most of its modules do."""
