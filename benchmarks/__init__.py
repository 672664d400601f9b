"""Figures that the README quotes, each from a command."""
