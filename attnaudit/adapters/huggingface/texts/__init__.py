"""Batches of texts, prompts and passages: tokenizers, words, templates, and the arguments of the model's forward().

A rule about how a text becomes tokens belongs here.
"""
