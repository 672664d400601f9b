"""Trains a causal Performer on 64x64 images as sequences of 12,288 values."""
