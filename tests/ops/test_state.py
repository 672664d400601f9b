"""First states and states of other shapes; `test_trunk.py` tests pieces."""

import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import KERNELS, qkv


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_initial_state_changes_nothing_and_is_float32(name):
    kernel = KERNELS[name]()
    inputs = qkv(2, 5, 5, heads=3, groups=2, dtype="bfloat16")
    num_features = kernel.projection_matrix.shape[0]
    initial = ops.initial_state(2, 3, num_features, 7)
    output, state = ops.causal_attention(*inputs, kernel, state=initial)
    for running_max, sums in (initial, state):
        assert running_max.shape == (2, 3, num_features)
        assert sums.shape == (2, 3, 8, num_features)
        assert running_max.dtype == sums.dtype == "float32"
    afresh, _ = ops.causal_attention(*inputs, kernel)
    assert output.dtype == "bfloat16" and bool(tf.reduce_all(output == afresh))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 1, 17), (2, 1, 8, 17)),  # another batch size
        ((1, 3, 17), (1, 3, 8, 17)),  # a shape that would broadcast
        ((3, 2, 17), (3, 2, 8, 17)),  # another number of heads
        ((3, 1, 16), (3, 1, 8, 16)),  # another number of features
        ((3, 1, 17), (3, 1, 7, 17)),  # another value size
    ],
)
def test_a_state_of_another_shape_raises(shapes):
    given = *qkv(3, 2, 2, 1), KERNELS["favor+"]()
    state = tuple(tf.zeros(shape, "float64") for shape in shapes)
    with pytest.raises(ValueError, match="state must come from"):
        ops.causal_attention(*given, state=state)
    with pytest.raises(ValueError, match="state must be a tuple"):
        ops.causal_attention(*given, state="x")
