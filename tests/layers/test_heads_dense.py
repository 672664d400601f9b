"""Dense layers, which are `EinsumDense` with another product.

`test_definitions.py` tests their numbers, in layers.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers.dense import heads_dense
from tests.layers.inputs import normal, small_layer

OPTIONS = {
    "use_bias": True,
    "kernel_initializer": keras.initializers.GlorotUniform(seed=0),
    "bias_initializer": keras.initializers.RandomNormal(seed=1),
}


@pytest.mark.parametrize("dtype, jit_compile", [("bfloat16", True), ("float16", False)])
def test_bias_gradients_of_half_precision_do_not_stall(dtype, jit_compile):
    """A running sum in bfloat16 would stop at 64 here, in float16 at 2,048."""
    dense = heads_dense("dense", (1, 100_000, 1), 1, (2, 2), **OPTIONS, dtype=dtype)

    @tf.function(jit_compile=jit_compile)
    def run(x, weight):
        bias = dense.bias.value
        with tf.GradientTape() as tape:
            output = dense(x)
        return tape.gradient(output, bias, weight)

    quarters = tf.fill((1, 100_000, 2, 2), tf.constant(0.25, dtype))
    gradient = run(tf.zeros((1, 100_000, 1), dtype), quarters)
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), 25_000, rtol=4e-3)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_are_as_good_as_floats(dtype):
    x = (normal((2, 9, 7), 0) > 0).astype(dtype)
    layer = small_layer()
    np.testing.assert_array_equal(layer(x), layer(x.astype("float32")))
    assert layer(keras.Input((9, 7), dtype=dtype)).dtype == "float32"


def test_one_row_is_multiplied_as_two():
    """XLA on CPUs takes ten times as long for a product of a single row."""
    dense = heads_dense("dense", (1, 1, 8), 1, (2, 4), **OPTIONS)
    x = normal((1, 1, 8), 2)
    right = np.einsum("btd,dnh->btnh", x, dense.kernel) + dense.bias
    np.testing.assert_allclose(dense(x), right, rtol=1e-5)
    graph = tf.function(dense).get_concrete_function(x).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    assert [op.inputs[0].shape for op in products] == [(2, 8)]
