"""Reference models of the papers and their trainer. Imports no torch until a module of it is asked for."""
