"""LoRA of dense layers and embeddings: files with and without it, and its gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

from keras_performer.layers.dense import LogitsDense, token_dense
from keras_performer.layers.embeddings import TokenEmbedding
from tests.contract import relative_error
from tests.layers.inputs import normal

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
