"""Measures what trained models lose when linear attention replaces theirs."""
