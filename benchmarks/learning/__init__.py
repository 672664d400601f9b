"""Compares how well small models learn with different attentions."""
