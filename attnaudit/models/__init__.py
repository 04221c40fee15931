"""Reference models and their trainer. Importing this package imports no torch; its modules do."""
