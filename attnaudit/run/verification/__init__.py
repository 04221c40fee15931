"""Verification of a run that has ended: what it had to audit, whether its record was edited, and its numbers again."""
