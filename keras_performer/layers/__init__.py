"""Keras layers."""

from keras_performer.layers.performer_attention import PerformerAttention

__all__ = ["PerformerAttention"]
