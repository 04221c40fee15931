"""Tests of how a model behaves, made once when an adapter is built: what mixes tokens, and which shortcuts hold.

A reason to refuse a model that only a run can show belongs here.
"""
