"""Attention layers side by side on tasks of long sequences."""
