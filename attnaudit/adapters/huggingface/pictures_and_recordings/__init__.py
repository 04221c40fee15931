"""Models that read pictures or recordings: patches and frames, their batches and passes, and their adapters.

Everything that texts do not need belongs here.
"""
