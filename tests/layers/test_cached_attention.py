"""Attention called with a cache as in KerasHub: masks (B, T, S), keys and values."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.conversion.cached import (
    CachedExactAttention,
    CachedPerformerAttention,
    is_cached,
)
from keras_performer.layers import keras_privates
from tests.layers.inputs import BIAS, normal

LENGTH = 7
X = normal((2, LENGTH, 6))
PADDING = (np.arange(LENGTH) < [[7], [4]])[:, np.newaxis]
EARLIER = np.tri(LENGTH, dtype=bool)[np.newaxis]


def cached(kind=CachedPerformerAttention, **options):
    given = dict(num_heads=2, key_dim=3, bias_initializer=BIAS, seed=5)
    if kind is CachedPerformerAttention:
        given["num_random_features"] = 6
    layer = kind(**{**given, **options})
    layer.build(X.shape, X.shape)
    return layer


KINDS = {
    "exact": lambda: cached(CachedExactAttention),
    "a window over everything": lambda: cached(exact_window=LENGTH),
}
MASKS = {
    "none": None,
    "padding": PADDING,
    "causal": np.repeat(EARLIER, 2, axis=0),
    "padding times causality": PADDING & EARLIER,
    "as ints": (PADDING & EARLIER).astype("int32"),
}


def like_keras(layer):
    """Returns Keras' layer with the same weights."""
    expected = keras.layers.MultiHeadAttention(2, 3)
    expected.build(X.shape, X.shape)
    expected.set_weights(layer.get_weights()[:8])
    return expected


def assert_close(output, expected):
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_those_of_keras(kind, mask):
    layer, call = KINDS[kind](), dict(attention_mask=MASKS[mask])
    call["return_attention_scores"] = True
    for found in zip(layer(X, X, **call), like_keras(layer)(X, X, **call), strict=True):
        assert_close(*found)


@pytest.mark.parametrize(
    "kind, options, compiled",
    [
        (CachedPerformerAttention, {}, False),
        (CachedPerformerAttention, {"exact_window": 3}, False),
        (CachedExactAttention, {}, True),
    ],
)
def test_with_a_cache_it_is_the_whole(kind, options, compiled):
    layer = cached(kind, **options)
    whole = layer(X, X, attention_mask=MASKS["causal"])

    def step(x, cache, index):
        # as in KerasHub, which also hides later positions of the cache
        seen = index + tf.range(x.shape[1])[:, tf.newaxis] >= tf.range(LENGTH)
        mask = tf.repeat(seen[tf.newaxis], 2, axis=0)
        return layer(x, x, attention_mask=mask, cache=cache, cache_update_index=index)

    calls = [step, step, step]
    if compiled:  # compile the second call; the others have other shapes
        calls[1] = tf.function(step, jit_compile=True)
    cache, parts = normal((2, 2, LENGTH, 2, 3)), []  # its numbers must not count
    for call, (start, end) in zip(calls, ((0, 3), (3, 4), (4, 7))):
        part, cache = call(X[:, start:end], tf.constant(cache), tf.constant(start))
        parts.append(part)
    assert_close(tf.concat(parts, 1), whole)


@pytest.mark.parametrize("kind", [CachedPerformerAttention, CachedExactAttention])
def test_a_cache_that_has_all_is_not_written(kind):
    layer, other = cached(kind), normal((2, 5, 6), seed=1)
    mask = dict(attention_mask=np.arange(5) < [[[3]], [[5]]])
    cache = tf.stack([layer.key_dense(other), layer.value_dense(other)], axis=1)
    output, after = layer(X, X, cache=cache, **mask)
    assert_close(output, layer(X, other, **mask))
    np.testing.assert_array_equal(after, cache)


HOLES = np.arange(LENGTH) % 4 != [[1], [3]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_implicit_masks_hide_what_they_hide_in_keras(kind, mask):
    layer, call = KINDS[kind](), dict(attention_mask=MASKS[mask or "none"])
    plain = like_keras(layer)(X, X, value_mask=HOLES, **call).numpy()
    x = keras_privates.with_mask(tf.constant(X), tf.constant(HOLES))
    output = layer(x, x, **call).numpy()
    assert_close(output[HOLES], plain[HOLES])
    cache = normal((2, 2, LENGTH, 2, 3))
    output, cache = layer(x, x, cache=cache, cache_update_index=0, **call)
    assert_close(output[HOLES], plain[HOLES])
    bias = np.tile(layer.output_dense.bias, (np.sum(~HOLES), 1))
    np.testing.assert_array_equal(output[~HOLES], bias)
    # a full cache: the call does not write into it
    output, _ = layer(X, x, cache=cache, **call)
    assert_close(output, plain)


def test_implicit_masks_of_later_tokens_have_their_places_in_the_cache():
    layer, mask = cached(CachedExactAttention), MASKS["causal"]
    cache, call = normal((2, 2, LENGTH, 2, 3)), dict(attention_mask=mask[:, :4])
    _, cache = layer(X[:, :4], X[:, :4], cache=cache, cache_update_index=0, **call)
    here, call = HOLES[:, 4:], dict(attention_mask=mask[:, 4:])
    x = keras_privates.with_mask(tf.constant(X[:, 4:]), tf.constant(here))
    output, _ = layer(x, x, cache=cache, cache_update_index=4, **call)
    seen = mask & np.concatenate([np.ones((2, 4), bool), here], 1)[:, np.newaxis]
    expected = layer(X, X, attention_mask=seen)[:, 4:]
    assert_close(output[here], expected[here])
    assert np.abs(layer(X, X, attention_mask=mask)[:, 4:] - expected).max() > 1e-2


OTHER = MASKS["padding times causality"].copy()
OTHER[0, 3, 1] = False


@pytest.mark.slow
def test_other_masks_are_refused():
    layer = cached()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="combined with a causal mask"
    ):
        layer(X, X, attention_mask=OTHER)
    in_graph = tf.function(lambda mask: layer(X, X, attention_mask=mask))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="combined with a causal mask"
    ):
        in_graph(tf.constant(OTHER))
    # XLA has no assertions
    compiled = tf.function(in_graph, jit_compile=True)
    assert np.isnan(compiled(tf.constant(OTHER))).all()
    assert np.isfinite(compiled(tf.constant(PADDING & EARLIER))).all()
    with pytest.raises(ValueError, match=r"\(B, 1, S\) or .*Received.*\(7, 7\)"):
        layer(X, X, attention_mask=np.ones((7, 7)))


def test_scores_need_the_whole_sequence():
    cache = normal((2, 2, LENGTH, 2, 3))
    with pytest.raises(ValueError, match="leave the cache out"):
        cached()(X, X, cache=cache, return_attention_scores=True)


def test_layers_of_keras_are_not_called_so():
    assert is_cached(cached()) and not cached().supports_state
    assert not is_cached(keras.layers.MultiHeadAttention(2, 3))


def test_reports_see_the_masks_that_a_call_applies():
    """`conversion` reads the inputs of a call by `read`."""
    layer, padded = cached(CachedExactAttention), PADDING[:, 0]
    x = keras.layers.Masking()(tf.where(padded[..., np.newaxis], X, 0.0))
    inputs = layer.read(query=x, value=x)
    np.testing.assert_array_equal(inputs.query_mask, padded)
    np.testing.assert_array_equal(inputs.visible.key_mask, padded)
