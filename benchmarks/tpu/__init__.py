"""Compiles training steps with the TPU compiler, on a machine without a TPU."""
