"""The image model: inputs, causality, state, and likelihood of outputs."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from examples.imagenet64 import model as image_model
from examples.imagenet64.config import Config
from examples.imagenet64.likelihoods import BitsPerDimension, LogisticMixture
from keras_performer.layers import LocalAttention

SMALL = dict(
    num_layers=1,
    num_heads=1,
    hidden_dim=6,
    intermediate_dim=4,
    num_random_features=4,
)


def small_model(**changes):
    return image_model.make(Config(**{**SMALL, **changes}))


def photograph():
    """Returns a smooth random image."""
    random = np.random.default_rng(0)
    waves = random.normal(size=(4, 3)) @ random.normal(size=(3, 3))
    y, x = np.mgrid[:64, :64] / 20
    basis = np.stack([np.sin(x), np.cos(y), np.sin(x + y), np.ones_like(x)], -1)
    image = 128 + 40 * basis @ waves / np.abs(waves).max()
    return np.clip(image + random.normal(size=image.shape), 0, 255).astype(np.uint8)


def shifted():
    return image_model.shift(photograph()[np.newaxis])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_of_the_constants_of_the_embedding_do_not_stall(jit_compile):
    """Keras' bfloat16 gradient of a bias, a running sum, would stop at 64 here."""
    embedding = image_model.PixelEmbedding(2, dtype="mixed_bfloat16")
    inputs = tf.fill((8, image_model.LENGTH), image_model.GREY)

    @tf.function(jit_compile=jit_compile)
    def run(weight):
        kernel = embedding.kernel.value
        with tf.GradientTape() as tape:
            output, *_ = embedding(inputs, embedding.empty_state(8))
        return tape.gradient(output, kernel, weight)

    embedding.build(inputs.shape)
    gradient = run(tf.fill((8, image_model.LENGTH, 2), tf.constant(0.25, "bfloat16")))
    constants = tf.reshape(gradient, (3, -1, 2))[:, -1]
    expected = 8 * image_model.LENGTH / 3 / 4
    np.testing.assert_allclose(constants, expected, rtol=4e-3)


def test_attention_windows_and_positions_are_those_of_the_settings():
    model = small_model(exact_window=5, position_embedding="rotary")
    attention = model.blocks[0].attention
    assert attention.exact_window == 5 and attention.rotary == (64, 64, 3)
    assert model.positions is None
    attention = small_model(attention="local", exact_window=5).blocks[0].attention
    assert isinstance(attention, LocalAttention)
    assert attention.sliding_window == 5 and attention.rotary == (64, 64, 3)
    assert small_model(attention="none").blocks[0].attention is None


def test_the_embedding_may_read_more_and_start_rows_from_above():
    model = small_model(num_last=6, start_of_row="above")
    image = photograph()
    inputs, _ = image_model.shift(image[np.newaxis, :3])
    state = model.embedding.empty_state(1)
    x, reference, _ = model.embedding(inputs, state)
    colours = image[:3].ravel().astype("float64")
    kernel = model.embedding.kernel.numpy().reshape(3, 7, -1)
    for i in (7, 100, 192, 193, 383):
        known = [*(colours[i - 6 : i] - 128) / image_model.UNIT, 1.0]
        np.testing.assert_allclose(x[0, i], known @ kernel[i % 3], atol=1e-5)
    rows = reference.numpy().reshape(3, 64, 3)
    np.testing.assert_array_equal(rows[:, 1:], image[:3, :63])
    # the first input is 0, which is not a pixel
    np.testing.assert_array_equal(rows[:, 0], [[128] * 3, image[0, 0], image[1, 0]])
    again = model.from_config(model.get_config()).embedding
    assert (again.num_last, again.start_of_row) == (6, "above")


def test_outputs_do_not_depend_on_their_own_or_later_sub_pixels():
    model = small_model()
    inputs, _ = shifted()
    changed = np.array(inputs)
    changed[:, 5000:] = 255 - changed[:, 5000:]  # inputs 5000: are targets 4999:
    before, after = (model(x).numpy()[..., :-1] for x in (inputs, changed))
    scale = np.abs(before).max()
    assert np.abs(before - after)[:, :5000].max() < 1e-5 * scale
    assert np.abs(before - after)[:, 5000].max() > 1e-2 * scale


@pytest.mark.parametrize("changes", [{}, {"num_last": 6, "start_of_row": "above"}])
def test_prefill_and_steps_give_the_outputs_of_the_whole(changes):
    model = small_model(**changes)
    inputs = shifted()[0][:, :600]
    whole = model(inputs).numpy()
    parts, state = [], model.get_initial_state(1)
    for first, last in [(0, 1), (1, 2), (2, 192), (192, 597), (597, 598), (598, 600)]:
        part, state = model(inputs[:, first:last], state=state, return_state=True)
        parts.append(part.numpy())
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=2e-4)


# -- The likelihood


def outputs_and_references(num_mixtures, count, scale=1.0, seed=0):
    random = np.random.default_rng(seed)
    outputs = scale * random.normal(size=(count, 3 * num_mixtures))
    return outputs.astype(np.float32), random.integers(0, 256, count)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mixture_equals_differences_of_scipys_logistic(dtype):
    outputs, reference = outputs_and_references(3, count=400, scale=0.5)
    outputs = tf.cast(outputs, dtype)  # the computation is in float32
    targets = np.clip(
        reference + np.random.default_rng(1).integers(-9, 10, 400), 0, 255
    )
    assert (targets == 0).any() and (targets == 255).any()
    weights, offsets, log_scales = np.split(np.float64(outputs), 3, axis=-1)
    scales = np.geomspace(0.6, 38.0, 3) * np.exp(log_scales)
    law = stats.logistic(
        reference[..., None] + 32.0 * offsets, np.clip(scales, 0.05, 128.0)
    )
    upper = np.where(targets == 255, np.inf, targets + 0.5)[..., None]
    lower = np.where(targets == 0, -np.inf, targets - 0.5)[..., None]
    mass = special.softmax(weights, axis=-1) * (law.cdf(upper) - law.cdf(lower))
    actual = LogisticMixture(3).log_prob(outputs, targets, reference)
    assert actual.dtype == tf.float32
    expected = np.log(mass.sum(axis=-1))
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("num_mixtures", [1, 5])
@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0])
def test_logits_are_the_log_probs_of_all_values_and_sum_to_one(num_mixtures, scale):
    mixture = LogisticMixture(num_mixtures)
    outputs, _ = outputs_and_references(num_mixtures, 30, scale, seed=2)
    reference = np.linspace(0, 255, 30)
    log_probs = mixture.logits(outputs, reference)
    assert log_probs.shape == (30, 256)
    total = np.exp(np.float64(log_probs)).sum(axis=-1)
    np.testing.assert_allclose(total, 1.0, atol=2e-5)
    for value in (0, 1, 128, 255):
        one = mixture.log_prob(outputs, np.full(30, value), reference)
        np.testing.assert_allclose(log_probs[:, value], one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("magnitude", [0.0, 1.0, 30.0, 1e4, 1e30])
def test_log_probs_and_gradients_are_finite_for_every_value(magnitude):
    # All combinations of signs of (weight, offset, scale), for each of 256 values.
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T
    outputs = np.stack([np.concatenate([s, -s, s, s]) for s in signs])
    outputs = magnitude * outputs.reshape(8, 4, 3).transpose(0, 2, 1).reshape(8, 12)
    outputs = tf.constant(np.tile(outputs, (256, 1)).astype(np.float32))
    targets = np.repeat(np.arange(256), 8)
    for reference in (0.0, 127.5, 255.0):
        references = np.full(2048, reference, np.float32)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_prob = LogisticMixture(4).log_prob(outputs, targets, references)
        gradient = tape.gradient(log_prob, outputs)
        assert np.isfinite(log_prob).all() and np.isfinite(gradient).all()
        assert np.max(log_prob) <= 1e-6


def test_bits_per_dimension_are_the_mean_of_the_likelihoods():
    model = small_model()
    inputs, targets = shifted()
    outputs = model(inputs[:, :50])
    loss = BitsPerDimension("mixture", 5)(targets[:, :50], outputs)
    logits = model.next_token_logits(outputs[0]).numpy().astype("float64")
    chosen = logits[np.arange(50), targets[0, :50].numpy()]
    assert float(loss) == pytest.approx(-chosen.mean() / np.log(2), rel=1e-4)
    bits = BitsPerDimension("categorical", num_mixtures=1)
    assert float(bits(np.zeros((2, 7)), np.zeros((2, 7, 256)))) == pytest.approx(8.0)
    logits = np.full((2, 1, 256), -np.inf, "float32")
    logits[:, 0, :2] = np.log([[0.5, 0.5], [0.125, 0.875]])
    mean_of_1_and_3_bits = float(bits(np.zeros((2, 1)), logits))
    assert mean_of_1_and_3_bits == pytest.approx(2.0)
