"""Attention through the features of a kernel, linear in the length."""

from keras_performer.ops.linear.bidirectional import bidirectional_attention
from keras_performer.ops.linear.causal import causal_attention

__all__ = ["bidirectional_attention", "causal_attention"]
