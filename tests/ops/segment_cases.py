"""Packed sequences, and what attention to each of their segments alone gives."""

import numpy as np
import tensorflow as tf

from keras_performer import ops
from tests.ops.cases import value_and_gradients

# Causal attention in chunks of 4 takes these 80 tokens in three blocks of 32 tokens.
# The first example has segments of one token, several in one chunk, one that starts
# with a chunk and one that starts with a block; the second has one over two blocks.
LENGTH, CHUNK = 80, 4
FIRSTS = (0, 1, 2, 9, 10, 11, 16, 32, 33, 47, 79), (0, 7, 8, 60, 64, 77)


def ids(firsts=FIRSTS, length=LENGTH):
    """Ids of the tokens of each example; the first id comes back."""
    starts = np.zeros((len(firsts), length), "int32")
    for row, first in zip(starts, firsts):
        row[list(first)] = 1
    return np.cumsum(starts, axis=1) % 3


def starts(firsts=FIRSTS, length=LENGTH):
    return ops.segment_starts(ids(firsts, length))


def apart(attend, firsts=FIRSTS):
    """The function that attends to every segment of every example alone.

    Args:
        attend: function of tensors `(1, tokens, ...)`, one of which may be `None`.
    """

    def attention(*inputs):
        examples = []
        for example, first in enumerate(firsts):
            segments = zip(first, (*first[1:], inputs[0].shape[1]))
            outputs = [
                attend(*(_cut(x, example, start, stop) for x in inputs))
                for start, stop in segments
            ]
            examples.append(tf.concat(outputs, 1))
        return tf.concat(examples, 0)

    return attention


def with_large_keys(attend, inputs, large, size):
    """Outputs and gradients of the other tokens: with large keys, and as they are.

    Args:
        attend: function of query, key and value.
        inputs: query, key and value, float32.
        large: bool array `(B, T)`, the tokens whose keys are multiplied by `size`.
        size: float.

    Returns:
        Two lists as `value_and_gradients` returns them, and `(B, T, 1, 1)`, 1 for the
        other tokens.
    """
    query, key, value = inputs
    scale = np.where(large, size, 1.0)[..., None, None]
    others = tf.constant(~large[..., None, None], "float32")
    scaled, plain = (
        value_and_gradients(lambda *x: attend(*x) * others, (query, given, value))
        for given in (key * scale, key)
    )
    return scaled, plain, others


def _cut(x, example, start, stop):
    return None if x is None else x[example : example + 1, start:stop]
