"""Sentences about deviations from the published setting. The trained adversaries of several papers share them."""

from __future__ import annotations

from attnaudit.retraining import LONGER, PATIENCE

WORLD = "AG News: our F1 is for the class World, the paper's for Business."
HALVED = (
    "The published code halves the TVD. If the paper's TVD is halved as well, ours is twice as large for the same "
    "outputs."
)
LONG = (
    f"An adversary starts from the seed of its base model, as in the published code. It is trained for up to {LONGER} "
    f"times the base model's epochs, and stops after {PATIENCE} epochs without a smaller loss on dev (in the published "
    "code: on the training data)."
)
SHORT = (
    "Adversaries are trained for as many epochs as their base model. Wiegreffe & Pinter's code trains them for "
    f"{LONGER} times as many. Where both were run (tests 3 and 4 of Wiegreffe & Pinter), longer training changed the "
    "JSD in both directions."
)
