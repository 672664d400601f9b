import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from examples.imagenet64 import likelihoods

EVERY_VALUE = np.arange(256)


def outputs_and_references(num_mixtures, count, scale=1.0, seed=0):
    random = np.random.default_rng(seed)
    outputs = scale * random.normal(size=(count, 3 * num_mixtures))
    return outputs.astype(np.float32), random.integers(0, 256, count)


def scipy_log_prob(outputs, targets, reference, num_mixtures):
    """The definition in float64: differences of the logistic law's distribution."""
    weights, offsets, log_scales = np.split(np.float64(outputs), 3, axis=-1)
    scales = np.geomspace(0.6, 38.0, num_mixtures) * np.exp(log_scales)
    scales = np.clip(scales, 0.05, 128.0)
    law = stats.logistic(reference[..., None] + 32.0 * offsets, scales)
    upper = np.where(targets == 255, np.inf, targets + 0.5)[..., None]
    lower = np.where(targets == 0, -np.inf, targets - 0.5)[..., None]
    mass = special.softmax(weights, axis=-1) * (law.cdf(upper) - law.cdf(lower))
    return np.log(mass.sum(axis=-1))


def test_mixture_equals_differences_of_scipys_logistic():
    outputs, reference = outputs_and_references(3, count=400, scale=0.5)
    targets = np.clip(
        reference + np.random.default_rng(1).integers(-9, 10, 400), 0, 255
    )
    expected = scipy_log_prob(outputs, targets, reference, num_mixtures=3)
    assert (targets == 0).any() and (targets == 255).any()
    actual = likelihoods.get("mixture", 3).log_prob(outputs, targets, reference)
    assert actual.dtype == tf.float32
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["categorical", "mixture"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0])
def test_probabilities_sum_to_one(name, scale):
    likelihood = likelihoods.get(name)
    outputs = scale * np.random.default_rng(2).normal(size=(30, likelihood.num_outputs))
    reference = np.linspace(0, 255, 30)
    log_probs = likelihood.logits(outputs, reference)
    assert log_probs.shape == (30, 256)
    total = np.exp(np.float64(log_probs)).sum(axis=-1)
    np.testing.assert_allclose(total, 1.0, atol=2e-5)


@pytest.mark.parametrize("name", ["categorical", "mixture"])
def test_logits_are_the_log_probs_of_all_values(name):
    likelihood = likelihoods.get(name)
    outputs = np.random.default_rng(3).normal(size=(4, likelihood.num_outputs))
    reference = np.array([0, 90, 200, 255])
    log_probs = likelihood.logits(outputs, reference)
    for value in (0, 1, 128, 254, 255):
        one = likelihood.log_prob(outputs, np.full(4, value), reference)
        np.testing.assert_allclose(log_probs[:, value], one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("magnitude", [0.0, 1.0, 30.0, 1e4, 1e30])
def test_log_probs_and_gradients_are_finite_for_every_value(magnitude):
    likelihood = likelihoods.get("mixture", 4)
    # Every combination of signs of (weight, offset, scale), for each of 256 values.
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T
    outputs = np.stack([np.concatenate([s, -s, s, s]) for s in signs])
    outputs = magnitude * outputs.reshape(8, 4, 3).transpose(0, 2, 1).reshape(8, 12)
    outputs = tf.constant(np.tile(outputs, (256, 1)).astype(np.float32))
    targets = np.repeat(EVERY_VALUE, 8)
    for reference in (0.0, 127.5, 255.0):
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_prob = likelihood.log_prob(
                outputs, targets, np.full(2048, reference, np.float32)
            )
        gradient = tape.gradient(log_prob, outputs)
        assert np.isfinite(log_prob).all() and np.isfinite(gradient).all()
        assert np.max(log_prob) <= 1e-6


def test_gradient_equals_finite_differences_of_scipy():
    outputs, reference = outputs_and_references(2, count=6, scale=0.3, seed=4)
    targets = np.array([0, 255, 7, 128, 250, 1])
    reference = np.array([3, 250, 5, 120, 255, 0])
    watched = tf.constant(outputs)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        total = tf.reduce_sum(
            likelihoods.get("mixture", 2).log_prob(watched, targets, reference)
        )
    gradient = tape.gradient(total, watched)
    for column in range(6):
        shift = np.zeros(6)
        shift[column] = 1e-5
        up = scipy_log_prob(outputs + shift, targets, reference, 2)
        down = scipy_log_prob(outputs - shift, targets, reference, 2)
        expected = (up - down) / 2e-5
        np.testing.assert_allclose(gradient[:, column], expected, rtol=2e-3, atol=2e-4)


def test_half_precision_outputs_are_computed_in_float32():
    outputs, reference = outputs_and_references(5, count=50, seed=5)
    rounded = tf.cast(outputs, tf.bfloat16)
    likelihood = likelihoods.get("mixture")
    actual = likelihood.log_prob(rounded, reference, reference)
    expected = likelihood.log_prob(tf.cast(rounded, tf.float32), reference, reference)
    assert actual.dtype == tf.float32
    np.testing.assert_array_equal(actual, expected)


def test_sampling_from_the_logits_has_the_law_of_the_distribution():
    likelihood = likelihoods.get("mixture", 2)
    outputs, reference = outputs_and_references(2, count=1, seed=7)
    values = tf.random.stateless_categorical(
        likelihood.logits(outputs, reference), 20000, seed=(1, 2)
    )
    drawn = likelihood.distribution(outputs, reference).sample(20000, seed=(3, 4))
    statistic = stats.ks_2samp(np.ravel(values), np.ravel(drawn)).statistic
    assert statistic < 0.02  # the 1e-4 quantile for two samples of 20,000 is 0.022


def test_bits_per_dimension():
    bits = likelihoods.BitsPerDimension("categorical", num_mixtures=1)
    assert float(bits(np.zeros((2, 7)), np.zeros((2, 7, 256)))) == pytest.approx(8.0)
    logits = np.full((2, 1, 256), -np.inf, "float32")
    logits[:, 0, :2] = np.log([[0.5, 0.5], [0.125, 0.875]])
    mean_of_1_and_3_bits = float(bits(np.zeros((2, 1)), logits))
    assert mean_of_1_and_3_bits == pytest.approx(2.0)


def test_mistakes():
    with pytest.raises(ValueError, match="must be 'categorical' or 'mixture'. Rec"):
        likelihoods.get("gaussian")
    with pytest.raises(ValueError, match="num_mixtures must be a positive int. Rec"):
        likelihoods.get("mixture", 0)
    mixture = likelihoods.get("mixture")
    with pytest.raises(ValueError, match="reference must be given"):
        mixture.log_prob(np.zeros((1, 15)), np.zeros(1))
    with pytest.raises(ValueError, match="reference must be given"):
        mixture.logits(np.zeros((1, 15)))
