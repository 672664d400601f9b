"""Replacements for operations of TensorFlow have the same results."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer.ops.shapes import repeat

ARRAY = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "shape, axis, repeats",
    [
        ((2, 3, 4), 0, 3),
        ((2, 3, 4), 2, 1),
        ((None, 3, 4), 0, 3),
        ((None, 3, 4), 1, 3),
        ((None, None, 4), 1, 3),
        ((None, None, 4), 2, 3),
    ],
)
def test_repeats_are_those_of_numpy(shape, axis, repeats):
    given = tf.TensorSpec(shape, tf.int64)
    traced = tf.function(lambda x: repeat(x, repeats, axis), input_signature=[given])
    np.testing.assert_array_equal(traced(ARRAY), np.repeat(ARRAY, repeats, axis))
    known = [
        length and length * (repeats if i == axis else 1)
        for i, length in enumerate(shape)
    ]
    assert traced.get_concrete_function().output_shapes.as_list() == known
