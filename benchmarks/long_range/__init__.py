"""Compares attention layers on tasks of long sequences."""
