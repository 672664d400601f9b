"""Attention as one function, compiled by XLA by itself where that is safe and pays."""

import functools

import tensorflow as tf

from keras_performer import ops

# Shorter sequences take less time in a whole training than the compiler does.
MIN_COMPILED_LENGTH = 1024


def attend(query, key, value, matrix, visible, state, feature_map, causal, chunk_size):
    """`(attended, state)` of the op that a layer's options stand for."""
    kernel = feature_map.kernel(matrix)
    if causal:
        return ops.causal_attention(
            query, key, value, kernel, visible, state, chunk_size
        )
    attended = ops.bidirectional_attention(query, key, value, kernel, visible)
    return attended, None


def compiled_attend(query, key, value, matrix, visible, state, *options):
    """`attend`, compiled; layers with equal options share what is compiled."""
    return _compiled(*options)(query, key, value, matrix, visible, state)


def should_compile(jit_compile, query, key, training):
    """What `jit_compile="auto"` means for these queries and keys."""
    if jit_compile != "auto":
        return jit_compile
    # Each length compiles anew; without training there may be many, and a model that
    # is exported should run where XLA is not. Strategies compile, or place, their own.
    lengths = (query.shape[1], key.shape[1])
    return (
        training is True
        and not tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and None not in lengths
        and max(lengths) >= MIN_COMPILED_LENGTH
    )


@functools.lru_cache(maxsize=None)
def _compiled(feature_map, causal, chunk_size):
    def attention(query, key, value, matrix, visible, state):
        return attend(
            query, key, value, matrix, visible, state, feature_map, causal, chunk_size
        )

    return tf.function(attention, jit_compile=True, autograph=False)
