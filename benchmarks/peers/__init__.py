"""Compares numbers and time of our layers with the same layers of other libraries."""
