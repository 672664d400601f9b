"""`SynthesizerAttention` beside the equations of its paper."""

import numpy as np
import pytest

from keras_performer.zoo import SynthesizerAttention
from tests.layers.inputs import normal
from tests.layers.twins import (
    assert_is_twin,
    heads,
    randomize,
    softmax,
    weights_of,
    written,
)

KINDS = "dense", "random", "factorized_random"


def small(kind="dense", shapes=((2, 7, 5),), **options):
    defaults = dict(value_dim=2, max_length=11, dtype="float64")
    layer = SynthesizerAttention(4, 3, kind=kind, **{**defaults, **options})
    layer.build(*shapes)
    randomize(layer, std=1.0)
    return layer


def logit(weights, hidden, head, i, j):
    """Logit of key j for the query at place i, whose hidden layer has values."""
    if "alignment" in weights:
        return weights["alignment"][head, i, j]
    if "query_factor" in weights:
        return weights["query_factor"][head, i] @ weights["key_factor"][head, j]
    bias = weights["place_bias"][head, j] if "place_bias" in weights else 0.0
    return hidden @ weights["place_kernel"][head, :, j] + bias


def synthesizer(weights, query, value=None, key_mask=None, use_causal_mask=False):
    """softmax(logits of the kind) G(X), logit after logit."""
    value = query if value is None else value
    length, num_keys = query.shape[1], value.shape[1]
    hidden = np.zeros((*query.shape[:2], 4, 0))
    if "place_kernel" in weights:
        hidden = np.maximum(heads(weights, "query", query), 0)
    v = heads(weights, "value", value)
    attended = np.zeros((*query.shape[:2], 4, v.shape[3]))
    for b, n in np.ndindex(query.shape[0], 4):
        logits = [
            [logit(weights, hidden[b, i, n], n, i, j) for j in range(num_keys)]
            for i in range(length)
        ]
        seen = np.tri(length, num_keys) if use_causal_mask else np.ones((length, 1))
        seen = seen * (np.ones(num_keys) if key_mask is None else key_mask[b])
        of_head = v[b, :, n // (4 // v.shape[2])]
        attended[b, :, n] = softmax(np.array(logits), seen > 0) @ of_head
    return written(weights, attended)


@pytest.mark.parametrize(
    "kind, use_causal_mask", [*((kind, True) for kind in KINDS), ("dense", False)]
)
def test_it_is_the_equation(kind, use_causal_mask):
    layer = small(kind, num_key_value_heads=2)
    seen = np.ones((2, 7), bool)
    seen[0, 4:] = seen[1, :2] = False
    call = dict(key_mask=seen, use_causal_mask=use_causal_mask)
    assert_is_twin(layer, synthesizer, [normal((2, 7, 5), 1)], **call)


@pytest.mark.parametrize(
    "kind, lengths",
    [("dense", (3, 11)), ("random", (7, 1)), ("factorized_random", (1, 7))],
)
def test_keys_may_be_of_another_sequence(kind, lengths):
    inputs = [normal((2, n, width), n) for n, width in zip(lengths, (5, 6))]
    layer = small(kind, [x.shape for x in inputs])
    assert_is_twin(layer, synthesizer, inputs)


def test_only_what_is_used_is_there():
    own = {"dense": {"query/kernel", "query/bias", "place_kernel", "place_bias"}}
    own["random"], own["factorized_random"] = {"alignment"}, {"query_factor"}
    own["factorized_random"] |= {"key_factor"}
    common = {"value/kernel", "value/bias"}
    common |= {"attention_output/kernel", "attention_output/bias"}
    for kind in KINDS:
        assert set(weights_of(small(kind))) == own[kind] | common
    assert small("factorized_random").query_factor.shape == (4, 11, 8)
    no_bias = weights_of(small(use_bias=False))
    assert set(no_bias) == {
        name for name in own["dense"] | common if "bias" not in name
    }


@pytest.mark.parametrize(
    "kind, name, sizes",
    [
        ("dense", "place_kernel", (150, 200)),
        ("random", "alignment", (200, 200)),
        ("factorized_random", "key_factor", (200, 8)),
    ],
)
def test_weights_are_glorot_uniform_in_each_head(kind, name, sizes):
    layer = SynthesizerAttention(5, 150, max_length=200, kind=kind)
    layer.build((1, None, 4))
    drawn = np.asarray(getattr(layer, name))
    limit = np.sqrt(6 / sum(sizes))
    assert drawn.shape == (5, *sizes)
    assert 0.99 * limit < drawn.max() <= limit and -limit <= drawn.min()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left_shows_the_weights_of_other_places(kind):
    """A masked token counts as a place, and as nothing else."""
    layer, x = small(kind), normal((2, 5, 5), 1)
    seen = np.repeat([np.arange(8) >= 3], 2, 0)
    paddings = normal((2, 3, 5), 2), normal((2, 3, 5), 3, 1e4)
    padded, same = (
        layer(np.concatenate([padding, x], 1), key_mask=seen)[:, 3:]
        for padding in paddings
    )
    np.testing.assert_array_equal(padded, same)
    assert np.abs(padded - layer(x)).max() > 0.1
    axes = {"alignment": (1, 2), "query_factor": 1, "key_factor": 1}
    axes |= {"place_kernel": 2, "place_bias": 1}
    for weight in layer.trainable_weights:
        if weight.name in axes:
            weight.assign(np.roll(weight, -3, axes[weight.name]))
    np.testing.assert_allclose(padded, layer(x), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_longer_query_can_see(kind):
    layer = SynthesizerAttention(2, 3, max_length=11, kind=kind)
    message = "longer than max_length=11, of 12 tokens"
    x = normal((2, 7, 5), 1)
    if kind == "dense":  # a token has weights wherever it is
        assert layer(normal((2, 12, 5), 1), x).shape == (2, 12, 5)
    else:
        with pytest.raises(ValueError, match=message):
            layer(normal((2, 12, 5), 1), x)
