"""The audit of the audit: what the checks say of models whose attention is known to be right or wrong."""
