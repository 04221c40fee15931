"""Deviations that the trained adversaries of several papers share, as sentences for their tables."""

from __future__ import annotations

from attnaudit.retraining import LONGER, PATIENCE

HALVED = "If the paper's TVD is halved as well, as in the published code, ours is twice that for the same outputs."
LONG = (
    f"An adversary is drawn from its base's seed, as in the published code, and trained for up to {LONGER} times the "
    f"base's epochs, but no further than {PATIENCE} without a smaller loss on dev (the published code: on training)."
)
SHORT = (
    f"Adversaries are trained for as many epochs as their base; Wiegreffe & Pinter's code has {LONGER} times as many, "
    "and its adversaries here reach more."
)
