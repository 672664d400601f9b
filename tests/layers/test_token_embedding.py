"""The table of token embeddings has a tensor as its gradient, with LoRA too."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

from keras_performer.layers.embeddings import TokenEmbedding
from tests.layers.inputs import normal

IDS = np.array([[1, 2, 2, 3], [2, 5, 0, 2]])


def quantize(layer, mode):
    if mode == "int4" and Version(keras.__version__) < Version("3.12"):
        pytest.skip("Keras has no int4 for embeddings before 3.12")
    layer.quantize(mode)


@pytest.mark.parametrize("mode", [None, "int8", "int4"])
def test_lora_has_the_summed_gradient_of_each_token(mode):
    layer = TokenEmbedding(7, 8)
    layer.build((None, None))
    if mode is not None:
        quantize(layer, mode)
    layer.enable_lora(3, lora_alpha=6)
    layer.lora_embeddings_a.assign(normal((7, 3), 1))
    layer.lora_embeddings_b.assign(normal((3, 8), 2))
    variable = layer.lora_embeddings_a
    weights = normal((2, 4, 8), 3)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS) * weights)
    a, b = layer.trainable_variables[-2:]
    da, db = tape.gradient(loss, [a.value, b.value])
    assert layer.lora_embeddings_a is variable is a
    # rows of a times b, twice as alpha is twice the rank
    of_rows = 2 * weights @ b.numpy().T
    expected = np.zeros((7, 3))
    np.add.at(expected, IDS, of_rows)
    assert tf.is_tensor(da)
    np.testing.assert_allclose(da, expected, rtol=1e-5, atol=1e-5)
    rows = a.numpy()[IDS].reshape(-1, 3)
    np.testing.assert_allclose(
        db, 2 * rows.T @ np.reshape(weights, (-1, 8)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_quantized_table_with_lora_says_what_that_of_keras_says(mode):
    ours, other = TokenEmbedding(7, 8), keras.layers.Embedding(7, 8)
    for layer in (other, ours):
        layer.build((None, None))
        layer.set_weights([normal((7, 8), 1)])
        quantize(layer, mode)
        layer.enable_lora(3)
        layer.lora_embeddings_b.assign(normal((3, 8), 2))
    ours.lora_embeddings_a.assign(other.lora_embeddings_a)
    np.testing.assert_array_equal(ours(IDS), other(IDS))
