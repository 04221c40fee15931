"""Validate checks and policies on models whose attention is known to be faithful or unfaithful."""
