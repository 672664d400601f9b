"""`PerformerAttention(exact_window=...)`, the layer around `ops.windowed_attention`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM, convert_to_performer
from keras_performer.layers import ExactAttention
from tests.layers.inputs import language_model, normal


def made(**options):
    options = {"num_random_features": 8, "exact_window": 3, "seed": 1, **options}
    layer = PerformerAttention(4, 5, **options)
    layer.build((2, None, 8))
    if layer.exact_window is not None:
        layer.assign_log_gain(normal((4,), 3, std=0.5))
    return layer


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_as_long_as_the_sequence_is_exact_attention(causal):
    layer = made(exact_window=20, causal=causal)
    exact = ExactAttention(4, 5, causal=causal)
    exact.build((2, None, 8))
    exact.set_weights(layer.get_weights()[:8])
    x = normal((2, 20, 8), 1, std=3.0)
    np.testing.assert_allclose(layer(x), exact(x), rtol=1e-5, atol=1e-5)


def test_far_keys_have_their_first_gain():
    options = {"num_random_features": 8, "exact_window": 3, "seed": 1}
    x = normal((2, 20, 8), 1)
    scores = {}
    for gain in (0.0, -3.0):
        layer = PerformerAttention(
            4,
            5,
            causal=True,
            initial_log_gain=gain,
            bias_initializer="ones",
            **options,
        )
        layer.build(x.shape)
        for dense in (layer.query_dense, layer.key_dense):
            dense.kernel.assign(normal(dense.kernel.shape, 2))
        np.testing.assert_allclose(layer.log_gain, [gain] * 4)
        scores[gain] = layer(x, return_attention_scores=True)[1].numpy()
    far = np.abs(np.subtract.outer(np.arange(20), np.arange(20))) >= 3
    expected = np.where(far, np.exp(-3), 1) * scores[0.0]
    expected /= expected.sum(-1, keepdims=True)
    assert np.abs(expected - scores[0.0]).max() > 0.1
    np.testing.assert_allclose(scores[-3.0], expected, atol=1e-5)


def test_a_first_gain_of_each_head_is_that_of_a_layer_with_this_gain(tmp_path):
    gains = [-4.0, 0.0, 2.5]
    options = dict(exact_window=3, num_random_features=8, causal=True, seed=1)
    layer = PerformerAttention(3, 5, initial_log_gain=gains, **options)
    x = normal((2, 20, 8), 1)
    _, scores = layer(x, return_attention_scores=True)
    for head, gain in enumerate(gains):
        of_one = PerformerAttention(3, 5, initial_log_gain=gain, **options)
        of_one.build(x.shape)
        of_one.set_weights(layer.get_weights())
        of_one.assign_log_gain(gain)
        _, expected = of_one(x, return_attention_scores=True)
        np.testing.assert_allclose(scores[:, head], expected[:, head], atol=1e-6)

    gains = np.array(gains, "float32")
    model = language_model(9, 8, 2, 3, 6, exact_window=3, initial_log_gain=gains)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for block in loaded.blocks:
        np.testing.assert_allclose(block.attention.log_gain, gains)
        assert block.attention.initial_log_gain == (-4, 0, 2.5)
    again = PerformerLM.from_config(model.get_config())
    again.build((None, 8))
    np.testing.assert_allclose(again.blocks[1].attention.log_gain, [-4.0, 0, 2.5])
    without, _ = convert_to_performer(model, exact_window=None)
    assert without.blocks[0].attention.initial_log_gain == 0


def test_the_gain_trains_with_the_far_keys_alone():
    layer = made(causal=True, exact_window=6)
    for length, moves in ((6, False), (7, True)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(normal((1, length, 8), 1)) ** 2)
        gain = next(w for w in layer.trainable_weights if "log_gain" in w.path)
        gradient = tape.gradient(loss, gain.value)  # Keras warns of None
        assert (np.abs(gradient) > 1e-6).all() == moves


# twice to four times the spacing of numbers: products round otherwise on other machines
@pytest.mark.parametrize(
    "dtype, tolerance, causal",
    [("mixed_bfloat16", 2e-2, True), ("mixed_float16", 4e-3, False)],
)
def test_half_precision_is_near_to_float32(dtype, tolerance, causal):
    layer, half = made(causal=causal), made(causal=causal, dtype=dtype)
    half.set_weights(layer.get_weights())
    x = normal((1, 3000, 8), 1)
    expected, output = layer(x), half(x)
    assert output.dtype == dtype.removeprefix("mixed_")
    error = np.linalg.norm(tf.cast(output, "float32") - expected)
    assert error < tolerance * np.linalg.norm(expected)


def test_the_gain_is_what_it_was_made_with_and_can_be_set():
    layer = PerformerAttention(3, 5, exact_window=3, initial_log_gain=(-4.0, 2, 0))
    with pytest.raises(ValueError, match="needs a built layer with exact_window.*Rec"):
        layer.assign_log_gain(1.0)
    layer.build((None, None, 8))
    np.testing.assert_allclose(layer.log_gain, [-4.0, 2.0, 0.0], rtol=1e-6)
    # ten times faster than other weights, and in older files
    weight = next(w for w in layer.weights if w.path.endswith("far_gain/log_gain"))
    np.testing.assert_allclose(weight, [-0.4, 0.2, 0.0], rtol=1e-6)
    layer.assign_log_gain([1.0, -1.0, 0.5])
    np.testing.assert_allclose(layer.log_gain, [1.0, -1.0, 0.5], rtol=1e-6)
    plain = PerformerAttention(3, 5)
    plain.build((None, None, 8))
    assert plain.log_gain is None
