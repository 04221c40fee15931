"""Reference models and their training. Importing the package imports no torch, but most of its modules do."""
