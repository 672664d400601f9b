"""Attention as one function, compiled by XLA by itself where that is safe and pays."""

import functools

import tensorflow as tf

from keras_performer import ops

# Shorter sequences take less time in a whole training than the compiler does.
MIN_COMPILED_LENGTH = 1024


def attention(jit_compile, feature_map, causal, chunk_size):
    """The op that a layer's options stand for.

    Returns a function of query, key, value, projection matrix, key mask and state; it
    gives the attended values, and the state of causal attention. Layers with equal
    options share one function, and what is compiled of it.
    """
    return (_compiled if jit_compile else _plain)(feature_map, causal, chunk_size)


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


def _plain(feature_map, causal, chunk_size):
    def attend(query, key, value, matrix, mask, state):
        kernel = feature_map.kernel(matrix)
        if causal:
            return ops.causal_attention(
                query, key, value, kernel, mask, state, chunk_size
            )
        return ops.bidirectional_attention(query, key, value, kernel, mask), None

    return attend


@functools.cache
def _compiled(*options):
    return tf.function(_plain(*options), jit_compile=True, autograph=False)
