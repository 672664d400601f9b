"""Attention within buckets of locality-sensitive hashing, as in Reformer.

Tokens are sorted by bucket, and by position within a bucket. A query then sees the keys
near it in that order: local attention with other neighbours in each round of hashing.
"""

from keras_performer.ops.lsh.attention import lsh_attention, lsh_scores
from keras_performer.ops.lsh.buckets import lsh_buckets

__all__ = ["lsh_attention", "lsh_buckets", "lsh_scores"]
