"""Planted models of bags of vectors, and of several pooled attentions (heads and hops), with known truth."""
