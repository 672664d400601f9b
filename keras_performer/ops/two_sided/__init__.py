"""Attention with an exact window to both sides: near and far keys in one pass."""
