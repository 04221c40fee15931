"""Forward passes: the runner that runs a model, and the ways to compute less than a full pass with the same result.

A new shortcut belongs here, and the probe that decides whether a model may take it in `probes`.
"""
