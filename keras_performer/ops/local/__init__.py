"""Local attention: exact attention to the keys near a query, linear in length."""

from keras_performer.ops.local.attention import local_attention
from keras_performer.ops.local.recent import Recent

__all__ = ["Recent", "local_attention"]
