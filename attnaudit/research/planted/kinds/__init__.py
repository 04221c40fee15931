"""One module for each kind of planted models, or for several related kinds, with a `KINDS` tuple.

To add a kind, add a module to this folder. Nothing else has to change.
"""
