"""Dense layers, which are `EinsumDense` with another product; LoRA of layers and files.

`test_definitions.py` tests the numbers of dense layers, inside of others.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

from keras_performer.layers.dense import LogitsDense, heads_dense, token_dense
from keras_performer.layers.embeddings import TokenEmbedding
from tests.contract import relative_error
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


# -- LoRA.

TOKENS = np.random.default_rng(0).integers(11, size=(3, 5)).astype("int32")


MAKE = {
    "HeadsDense": lambda: token_dense("dense", 6),
    "TokenEmbedding": lambda: TokenEmbedding(11, 6),
    "LogitsDense": lambda: LogitsDense(6),
}


def model_of(class_name):
    tokens = keras.Input((5,), dtype="int32")
    inputs = tokens if class_name == "TokenEmbedding" else keras.Input((5, 8))
    return keras.Sequential([inputs, MAKE[class_name]()])


@pytest.mark.parametrize("class_name", MAKE)
def test_weights_with_lora_and_without_go_into_each_other(class_name):
    plain, with_lora, other = (model_of(class_name) for _ in range(3))
    x = TOKENS if class_name == "TokenEmbedding" else normal((3, 5, 8))
    for model in (with_lora, other):
        model.layers[-1].enable_lora(2, lora_alpha=3)
    layer = with_lora.layers[-1]
    for name in layer.lora_names[1:]:
        factor = getattr(layer, name)
        factor.assign(normal(factor.shape, 3))
    expected = with_lora(x)
    with_lora.save_weights("lora.weights.h5")
    plain.load_weights("lora.weights.h5")  # adds the product to the kernel
    assert relative_error(plain(x), expected) < 1e-6
    plain.save_weights("plain.weights.h5")
    other.load_weights("plain.weights.h5")  # LoRA starts anew, and can still learn
    assert relative_error(other(x), expected) < 1e-6
    factors = [np.array(getattr(other.layers[-1], n)) for n in layer.lora_names[1:]]
    assert np.any(factors[0]) and not np.any(factors[1])


@pytest.mark.parametrize(
    ("prepare", "received"),
    [
        (lambda layer: layer.enable_lora(3), "rank=3, lora_alpha=3"),
        (lambda layer: layer.enable_lora(2), "rank=2, lora_alpha=2"),
        (lambda layer: layer.quantize("int8"), "kernel is quantized, without LoRA"),
    ],
)
def test_weights_of_another_lora_are_refused(prepare, received):
    model, other = model_of("LogitsDense"), model_of("LogitsDense")
    model.layers[-1].enable_lora(2, lora_alpha=3)
    model.save_weights("lora.weights.h5")
    prepare(other.layers[-1])
    message = rf"enable_lora\(2, lora_alpha=3\).*{received}"
    with pytest.raises(ValueError, match=message):
        other.load_weights("lora.weights.h5")


# -- The gradient of token embeddings is a tensor, not `IndexedSlices`.


IDS = np.array([[1, 2, 2, 3], [2, 5, 0, 2]])


def quantize(layer, mode):
    if mode == "int4" and Version(keras.__version__) < Version("3.12"):
        pytest.skip("Keras has no int4 for embeddings before 3.12")
    layer.quantize(mode)


@pytest.mark.parametrize("mode", [None, "int8", "int4"])
def test_lora_of_a_table_is_that_of_keras(mode):
    results, weights = [], normal((2, 4, 8), 3)
    for layer in (keras.layers.Embedding(7, 8), TokenEmbedding(7, 8)):
        layer.build((None, None))
        layer.set_weights([normal((7, 8), 4)])
        if mode is not None:
            quantize(layer, mode)
        layer.enable_lora(3, lora_alpha=6)
        factors = layer.lora_embeddings_a, layer.lora_embeddings_b
        for seed, factor in enumerate(factors):
            factor.assign(normal(factor.shape, seed))
        with tf.GradientTape() as tape:
            output = layer(IDS)
            loss = tf.reduce_sum(output * weights)
        gradients = tape.gradient(loss, [factor.value for factor in factors])
        assert layer.lora_embeddings_a is factors[0]
        results.append([output, *map(tf.convert_to_tensor, gradients)])
    assert isinstance(gradients[0], tf.Tensor)  # Keras' is `IndexedSlices`
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
