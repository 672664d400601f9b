"""Dense layers, which are `EinsumDense` with another product, against NumPy, Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers.dense import HeadsDense, heads_dense
from tests.contract import relative_error
from tests.layers.inputs import normal, small_layer

OPTIONS = {
    "use_bias": True,
    "kernel_initializer": keras.initializers.GlorotUniform(seed=0),
    "bias_initializer": keras.initializers.RandomNormal(seed=1),
}
# shape of the input, number of summed axes, axes that replace them, einsum equation
FORMS = {
    "to heads": ((3, 5, 8), 1, (2, 4), "btd,dnh->btnh"),
    "from heads": ((3, 5, 2, 4), 2, (6,), "btnh,nhd->btd"),
    "one token to heads": ((1, 1, 8), 1, (2, 4), "btd,dnh->btnh"),
    "one token from heads": ((1, 1, 2, 4), 2, (6,), "btnh,nhd->btd"),
    "two axes to two": ((1, 1, 2, 4), 2, (3, 2), "btnh,nhde->btde"),
}


@pytest.mark.parametrize(
    "form, known, jit_compile",
    [
        ("to heads", False, False),
        ("to heads", True, True),
        ("from heads", True, False),
        ("from heads", False, True),
        ("one token to heads", True, False),
        ("one token from heads", True, True),
        ("two axes to two", True, False),
    ],
)
def test_product_and_its_gradients(form, known, jit_compile):
    shape, num_summed, made, einsum = FORMS[form]
    num_kept = len(shape) - num_summed
    built_for = shape if known else (*(None,) * num_kept, *shape[num_kept:])
    dense = heads_dense("dense", built_for, num_summed, made, **OPTIONS)
    x, weight = normal(shape, 0), normal(shape[:num_kept] + made, 1)

    @tf.function(
        jit_compile=jit_compile, input_signature=[tf.TensorSpec(built_for, tf.float32)]
    )
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = dense(x)
            loss = tf.reduce_sum(output * weight)
        kernel, bias = dense.trainable_weights
        return output, *tape.gradient(loss, [x, kernel.value, bias.value])

    output, dx, dkernel, dbias = run(x)
    kernel, bias = (w.numpy().astype("float64") for w in dense.weights)
    assert relative_error(output, np.einsum(einsum, x, kernel) + bias) < 1e-6
    inputs, result = einsum.split("->")
    left, right = inputs.split(",")
    back = np.einsum(f"{result},{right}->{left}", weight, kernel)
    assert relative_error(dx, back) < 1e-6
    back = np.einsum(f"{left},{result}->{right}", x, weight)
    assert relative_error(dkernel, back) < 1e-6
    assert relative_error(dbias, weight.sum(tuple(range(num_kept)))) < 1e-6


@pytest.mark.parametrize("tokens", [1, 5])
def test_equals_einsum_dense_with_lora_and_policy(tokens):
    dense = heads_dense(
        "dense", (2, tokens, 8), 1, (2, 4), **OPTIONS, dtype="mixed_bfloat16"
    )
    keras_dense = keras.layers.EinsumDense(
        "abc,cde->abde", (None, 2, 4), bias_axes="de", dtype="mixed_bfloat16"
    )
    keras_dense.build((2, tokens, 8))
    keras_dense.set_weights(dense.get_weights())
    for layer in (dense, keras_dense):
        layer.enable_lora(2)
        layer.lora_kernel_a.assign(normal((8, 2, 2), 2))
        layer.lora_kernel_b.assign(normal((2, 4), 3))
    x = normal((2, tokens, 8), 4)
    assert dense(x).dtype == tf.bfloat16
    np.testing.assert_array_equal(dense(x), keras_dense(x))


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


# configs from files of version 0.1
SAVED = [
    dict(equation="abc,cde->abde", output_shape=[None, 3, 4], bias_axes="de"),
    dict(equation="abcd,cde->abe", output_shape=[None, 7], bias_axes="e"),
    dict(equation="abcd,cdef->abef", output_shape=[None, 3, 2], bias_axes=None),
]


@pytest.mark.parametrize("saved", SAVED)
def test_configs_of_saved_files_are_taken(saved):
    config = heads_dense("dense", (2, 5, 8), 1, (2, 4), **OPTIONS).get_config()
    dense = HeadsDense.from_config({**config, **saved})
    again = HeadsDense.from_config(dense.get_config())
    inputs = saved["equation"].split(",")[0]
    shape = dict(zip("abcdefg", (2, 3, 4, 2, 5, 6, 7)))
    x = normal([shape[letter] for letter in inputs])
    output = again(x)
    kernel = again.kernel.numpy()
    right = np.einsum(saved["equation"], x, kernel)
    if saved["bias_axes"]:
        right = right + again.bias.numpy()
    assert relative_error(output, right) < 1e-6


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_are_as_good_as_floats(dtype):
    x = (normal((2, 9, 7), 0) > 0).astype(dtype)
    layer = small_layer()
    np.testing.assert_array_equal(layer(x), layer(x.astype("float32")))
    assert layer(keras.Input((9, 7), dtype=dtype)).dtype == "float32"


def test_one_row_is_multiplied_as_two():
    """XLA on CPUs takes ten times as long for a product of a single row."""
    dense = heads_dense("dense", (1, 1, 8), 1, (2, 4), **OPTIONS)
    graph = tf.function(dense).get_concrete_function(tf.ones((1, 1, 8))).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    assert [op.inputs[0].shape for op in products] == [(2, 8)]
