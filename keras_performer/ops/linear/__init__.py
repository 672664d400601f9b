"""Attention through the features of a kernel, linear in the length."""

from keras_performer.ops.linear.bidirectional import bidirectional_attention
from keras_performer.ops.linear.causal import causal_attention
from keras_performer.ops.linear.scores import attention_scores

__all__ = ["attention_scores", "bidirectional_attention", "causal_attention"]
