"""From the output of a model to the logits of the explained target: output heads, targets, and the tokens they read.

A new kind of output or target belongs here.
"""
