"""Attention with a forget gate, beside twins in NumPy and float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, ops
from keras_performer.layers import (
    ExactAttention,
    LinearTransformerAttention,
    LocalAttention,
)
from tests.layers.inputs import normal
from tests.layers.reference import softmax_features
from tests.layers.twins import (
    assert_is_twin,
    heads,
    randomize,
    softmax,
    weights_of,
    written,
)

LENGTH, WINDOW = 11, 3
KINDS = {
    "exact": (ExactAttention, {}),
    "local": (LocalAttention, {"sliding_window": WINDOW}),
    "elu": (LinearTransformerAttention, {}),
    "features": (PerformerAttention, {}),
    "window": (PerformerAttention, {"exact_window": WINDOW}),
}


def made(kind, causal=True, **options):
    """A layer of 4 query heads and two key-value heads, with random weights."""
    layer_class, own = KINDS[kind]
    if layer_class is PerformerAttention:
        own = {**own, "num_random_features": 8}
    common = dict(num_key_value_heads=2, seed=1, causal=causal, forget_gate=True)
    layer = layer_class(4, 6, **{**common, **own, "dtype": "float64", **options})
    layer.build((2, None, 8))
    randomize(layer)
    return layer


def decays_between(decay):
    """Sums of log-decays `(B, T, K)` between all pairs, `(B, K, T, T)`, by loops."""
    batch, length, num_heads = decay.shape
    sums = np.zeros((batch, num_heads, length, length))
    for i in range(length):
        for j in range(length):
            between = decay[:, min(i, j) + 1 : max(i, j) + 1]
            sums[:, :, i, j] = between.sum(1)
    return sums


def elu(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def twin_of(layer, kind, seen=None, segments=None):
    """The function of weights and tokens that `layer` is."""

    def twin(weights, x):
        q, k, v = (heads(weights, name, x) for name in ("query", "key", "value"))
        k, v = np.repeat(k, 2, 2), np.repeat(v, 2, 2)
        logits = np.einsum("btnh,bsnh->bnts", q, k) / 6**0.5
        distance = np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1]))
        visible = np.broadcast_to(distance >= 0 if layer.causal else True, logits.shape)
        shown = np.ones(x.shape[:2], bool) if seen is None else seen
        visible = visible & shown[:, None, None]
        if segments is not None:
            visible = visible & (segments[:, :, None] == segments[:, None])[:, None]
        near = np.abs(distance) < WINDOW
        far = logits
        if kind == "elu":
            far = np.log(np.einsum("btnh,bsnh->bnts", elu(q), elu(k)))
        elif kind in ("features", "window"):
            matrix = np.asarray(layer.projection_matrix, "float64")
            phi = (
                softmax_features(z @ matrix.T, z) for z in (q / 6**0.25, k / 6**0.25)
            )
            far = np.log(np.einsum("btnm,bsnm->bnts", *phi) / len(matrix))
        if kind == "window":
            gain = 10 * weights["far_gain/log_gain"][:, None, None]
            far = np.where(near, logits, far + gain)
        if kind == "local":
            visible = visible & near
        gate = x @ weights["forget_gate/kernel"] + weights["forget_gate/bias"]
        decay = np.where(shown[..., None], -np.log1p(np.exp(-gate)), 0.0)
        found = softmax(far + np.repeat(decays_between(decay), 2, 1), visible)
        return written(weights, np.einsum("bnts,bsnv->btnv", found, v))

    return twin


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_fade_with_the_tokens_between(kind, causal):
    layer = made(kind, causal)
    x = normal((2, LENGTH, 8), 1, dtype="float64")
    # the gain of far keys is float32
    tolerance = 1e-6 if kind == "window" else 1e-9
    assert_is_twin(layer, twin_of(layer, kind), [x], tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_segments(kind):
    """A masked token decays nothing, however large its inputs are."""
    layer = made(kind)
    x = normal((2, LENGTH, 8), 1, dtype="float64")
    seen = np.arange(LENGTH) % 4 != 2
    seen = np.stack([seen, np.arange(LENGTH) < 7])
    ids = np.stack([np.arange(LENGTH) // 4, np.arange(LENGTH) // 9])
    twin = twin_of(layer, kind, seen, ids)
    expected = twin(weights_of(layer), x)
    larger = np.where(seen[..., None], x, -50 * x)
    gate = [w.value for w in layer.trainable_weights if "forget_gate" in w.path]
    gradients = []
    for tokens in (x, larger):
        with tf.GradientTape() as tape:
            found = layer(tokens, query_mask=seen, segment_ids=ids)
            loss = tf.reduce_sum(tf.boolean_mask(found, seen) ** 2)
        np.testing.assert_allclose(found.numpy()[seen], expected[seen], atol=1e-6)
        gradients.append(tape.gradient(loss, gate))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9 * np.abs(one).max())
        assert np.any(one)


@pytest.mark.parametrize("kind", ["local", "elu", "features", "window"])
def test_pieces_with_a_state_are_the_whole(kind):
    """Training, a prompt at once, and token by token."""
    layer = made(kind)
    x = normal((2, LENGTH, 8), 1, dtype="float64")
    whole, last = layer(x, return_state=True)
    for cuts in ([5], [1, 2], range(1, LENGTH)):
        state, found = layer.initial_state(2), []
        for piece in np.split(x, cuts, axis=1):
            y, state = layer(piece, state=state, return_state=True)
            found.append(y)
        np.testing.assert_allclose(tf.concat(found, 1), whole, atol=1e-9)
        for one, other in zip(*map(tf.nest.flatten, (state, last)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_output(kind, causal):
    layer = made(kind, causal)
    x = normal((1, LENGTH, 8), 1, dtype="float64")
    output, scores = layer(x, return_attention_scores=True)
    weights = weights_of(layer)
    values = np.repeat(heads(weights, "value", x), 2, 2)
    attended = np.einsum("bnts,bsnv->btnv", scores, values)
    np.testing.assert_allclose(written(weights, attended), output, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gate_that_forgets_nothing_is_none(kind):
    layer, plain = made(kind), made(kind, forget_gate=False)
    names = [x.path.split("/", 1)[1] for x in plain.weights]
    by_name = {x.path.split("/", 1)[1]: x for x in layer.weights}
    assert set(by_name) - set(names) == {"forget_gate/kernel", "forget_gate/bias"}
    for name, weight in zip(names, plain.weights, strict=True):
        weight.assign(by_name[name])
    by_name["forget_gate/bias"].assign([60.0, 60.0])
    by_name["forget_gate/kernel"].assign(tf.zeros((8, 2)))
    x = normal((2, LENGTH, 8), 1, dtype="float64")
    np.testing.assert_allclose(layer(x), plain(x), atol=1e-9)


def test_biases_are_spread_from_the_first_head_to_the_last():
    layer = ExactAttention(4, 6, use_bias=False, forget_gate=True)
    layer.build((None, None, 8))
    assert layer._forget_gate.kernel.shape == (8, 4)
    np.testing.assert_allclose(
        layer._forget_gate.bias, [2.0, 2 + 5 / 3, 2 + 10 / 3, 7.0], rtol=1e-6
    )
    # half of a weight is left after 5 tokens, and after 760
    for bias, tokens in ((2.0, 5.46), (7.0, 760.0)):
        assert 0.5 == pytest.approx((1 + np.exp(-bias)) ** -tokens, abs=1e-3)
    one = LocalAttention(
        2, 6, sliding_window=2, num_key_value_heads=1, forget_gate=True
    )
    one.build((None, None, 8))
    np.testing.assert_allclose(one._forget_gate.bias, [2.0])
    config = ExactAttention(2, 6, forget_gate_bias=[1, 9]).get_config()
    assert config["forget_gate"] is False and config["forget_gate_bias"] == (1.0, 9.0)


def test_half_precision_decays_in_float32():
    """A gate of sigmoid(7) is 0.9991: in bfloat16 it would be 1, and forget nothing."""
    wide = ExactAttention(2, 8, causal=True, forget_gate=True, seed=1)
    x = normal((1, 600, 8), 1)
    wide.build(x.shape)
    for name in ("query", "key"):  # all keys have one weight but for the gate
        getattr(wide, f"{name}_dense").kernel.assign(tf.zeros((8, 2, 8)))
    wide._forget_gate.kernel.assign(tf.zeros((8, 2)))
    half = ExactAttention.from_config({**wide.get_config(), "dtype": "mixed_bfloat16"})
    half.build(x.shape)
    half.set_weights(wide.get_weights())
    _, scores = half(x, return_attention_scores=True)
    expected = 0.5 * np.exp(-np.log1p(np.exp(-7.0)) * np.arange(600)[::-1])
    ratio = scores[0, 1, -1].numpy().astype("float64")
    np.testing.assert_allclose(ratio / ratio[-1] / 2, expected, rtol=0.02)


def test_only_self_attention_has_a_gate():
    layer = made("features", causal=False)
    x, y = normal((2, 5, 8), 1), normal((2, 5, 8), 2)
    for others in ((y,), (x, y)):
        with pytest.raises(ValueError, match="forget_gate=True is for self-attention"):
            layer(x, *others)
    x = tf.constant(x)
    np.testing.assert_array_equal(layer(x, x), layer(x))
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, layer(inputs, inputs))
    np.testing.assert_allclose(model(x), layer(x), rtol=1e-6)


@pytest.mark.parametrize("bias", [(1.0,), 3.0, "ab", (2.0, np.inf), None])
def test_wrong_biases(bias):
    with pytest.raises(
        ValueError, match="pair of finite floats.*Received: forget_gate"
    ):
        ExactAttention(2, 8, forget_gate_bias=bias)


def test_the_state_is_of_the_gate():
    """A state without decays is refused, and says what it lacks."""
    plain = made("window", forget_gate=False)
    state = plain.initial_state(1)
    with pytest.raises(ValueError, match='"decay"'):
        made("window")(normal((1, 1, 8), 1), state=state)
    assert isinstance(
        ops.DecayingState(**made("window").initial_state(1)["attention"]), tuple
    )
