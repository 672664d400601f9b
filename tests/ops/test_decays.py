"""Decays: gradients, states and extremes; `test_trunk.py` compares their forms."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import decays
from keras_performer.ops.windowed import linear_attention

from .cases import float64, normal, qkv, softmax_kernel, value_and_gradients
from .test_trunk import FORMS, GATED, LENGTH, Form, assert_is_twin, both, one_key_above

CAUSAL = GATED["gated causal"]


# Position of a key that dwarfs all others, and the reason why later queries forget it.
@pytest.mark.parametrize(
    "place, forgets, causal, window",
    [
        (0, "gate", True, None),
        (0, "start", True, 5),
        (30, "start", True, None),
        (30, "gate", False, None),
        (69, "gate", True, 5),
        (69, "start", False, None),
        (LENGTH - 1, "gate", True, None),
    ],
)
def test_one_key_80_nats_above_and_then_forgotten(place, forgets, causal, window):
    query, key, value = (
        tf.cast(tf.repeat(x[:1], 2, 0), tf.float64)
        for x in one_key_above(place, FORMS["causal"])
    )
    number = np.arange(LENGTH)
    where = place + 3 if place < LENGTH - 1 else place - 3
    hit = (number == where) & (forgets == "gate")
    decay = np.where(hit, -100.0, -0.05)[:, None]
    inputs = [query, key, value, tf.constant(np.stack([decay, decay]))]
    form = Form(causal, window, forgets == "start", gated=True)
    mask = tf.constant(np.stack([number >= 0, number > 0]))
    firsts = (where,), (where,)
    assert_is_twin(
        *both(form, inputs + [normal((2,), 9)] * bool(window), mask, (), firsts),
        tolerance=1e-7,
    )


@pytest.mark.parametrize("gate", [-0.1, -4.0, -1e4])
def test_gates_alone_make_no_chunk_rare(gate, forms):
    query, key, value = qkv(2, LENGTH, LENGTH, 1, 2, dtype="float32")
    inputs = query, key, value, tf.fill((2, LENGTH, 1), gate)
    found = CAUSAL.ours()(*inputs)
    flags = np.concatenate(forms.rare, 1)
    assert flags.size >= 6 and not flags.any()
    np.testing.assert_allclose(found, CAUSAL.twin()(*float64(*inputs)), atol=2e-5)


@pytest.mark.parametrize("place, size, gate", [(30, 1.0, -100.0), (0, 1.9, -1000.0)])
def test_a_key_that_is_forgotten_in_its_chunk_makes_that_chunk_rare(
    place, size, gate, forms
):
    """A first key is the reference; the others, 150 nats below, count later."""
    query, key, value = one_key_above(place, FORMS["causal"])
    key = tf.where(np.arange(LENGTH)[:, None, None] == place, key, size * key)
    decay = np.full((2, LENGTH, 1), -0.05, "float32")
    decay[0, 33] = gate  # in the first example only
    inputs = query, key, value, tf.constant(decay)
    found = CAUSAL.ours()(*inputs)
    flags = np.concatenate(forms.rare, 1)
    assert flags[0, 0] and forms.log_pairs
    assert place > 0 or not flags[1, 0]
    np.testing.assert_allclose(found, CAUSAL.twin()(*float64(*inputs)), atol=1e-3)


def test_gates_of_65536_tokens_add_up_nowhere():
    """Errors do not add up: the last queries are right to float32's precision."""
    length, last, gate = 65_536, 1024, float(np.log(1 / (1 + np.exp(-2.0))))
    query, key, value = qkv(1, length, length, 1, dtype="float32")
    decay = tf.fill((1, length, 1), gate)
    found = tf.function(CAUSAL.ours())(query, key, value, decay)[:, -64:]
    ends = (x[:, -last:] for x in float64(query, key, value, decay))
    np.testing.assert_allclose(found, CAUSAL.twin()(*ends)[:, -64:], atol=1e-5)


@pytest.mark.parametrize("hides", [-np.inf, -60000.0])
def test_decays_in_half_precision(hides):
    query, key, value = qkv(1, 20, 20, 1, dtype="float32")
    decay = np.zeros((1, 20, 1))
    decay[0, 10] = hides
    kernel, visible = softmax_kernel(), ops.Visibility(causal=True)
    found, _ = linear_attention(
        query, key, value, kernel, visible, decay=tf.constant(decay, "float16")
    )
    late = (x[:, 10:] for x in (query, key, value))
    expected, _ = linear_attention(*late, kernel, visible)
    np.testing.assert_allclose(found[:, 10:], expected, atol=1e-5)


def test_a_decay_of_other_keys_than_queries_is_refused():
    query, key, value = qkv(1, 4, 6, 1, dtype="float32")
    decay = tf.zeros((1, 6, 1))
    with pytest.raises(ValueError, match="one key for each query.*Received: query"):
        ops.bidirectional_attention(query, key, value, softmax_kernel(), decay=decay)


def test_errors_say_what_is_wanted():
    query, key, value = qkv(1, 6, 6, 1, dtype="float32")
    visible, decay = ops.Visibility(causal=True), tf.zeros((1, 6, 1))

    def attend(state=None, **options):
        given = query, key, value, softmax_kernel(), visible, 2, None, state
        return linear_attention(*given, **options)[1]

    def local(state=None, **options):
        given = query, key, value, 2, visible
        return ops.local_attention(*given, state=state, **options)[1]

    with pytest.raises(ValueError, match=r"here \(1, 6, 1\).*Received: float32 of"):
        attend(decay=tf.zeros((1, 6)))
    with pytest.raises(ValueError, match="must be floats.*Received: int32"):
        attend(decay=tf.zeros((1, 6, 1), "int32"))
    for call in attend, local:
        with pytest.raises(ValueError, match="with_decay=True.*none in the state"):
            call(call(), decay=decay)
        with pytest.raises(ValueError, match="in none.*none in the call"):
            call(call(decay=decay))


@pytest.mark.parametrize("tokens, after", [(9, None), (4, None), (4, 3), (9, 0)])
def test_small_gates_are_not_lost_beside_large_ones(tokens, after):
    """Compares float32 sums over pairs, and their gradient, with float64 sums."""
    rng = np.random.default_rng(0)
    gates = -rng.exponential(size=(2, 9, 1)).astype("float32")
    gates[0, 2], gates[1, 5] = -3e7, -2e4
    first = 9 - tokens - (after or 0)
    spans = np.zeros((tokens, 9, 9))  # gates between query and key
    for query in range(tokens):
        for key in range(9 if after is not None else first + query + 1):
            near, far = sorted((first + query, key))
            spans[query, key, near + 1 : far + 1] = 1
    expected = np.einsum("qkt,xt->xqk", spans, gates[..., 0].astype("float64"))
    found = decays.between(tf.constant(gates), tokens, after)
    # sums with a large gate are rounded once; sums without it are exact to 1e-6
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-6)
    dpairs = rng.normal(size=expected.shape) * spans.any(-1)
    pulled = decays.pull_between(tf.constant(dpairs, "float32"), after)
    wanted = np.einsum("qkt,xqk->xt", spans, dpairs)
    np.testing.assert_allclose(pulled[..., 0], wanted, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_nan_gates_show_in_the_output(window):
    """A NaN in the gates alone would otherwise train unnoticed."""
    *given, decay, gain = GATED["gated causal, window"].inputs()
    tokens = np.arange(decay.shape[1])
    decay = tf.where((tokens == 7)[:, np.newaxis], np.nan, decay)
    visible = ops.Visibility(causal=True)
    kernel, gain = softmax_kernel(), [gain] if window else []
    output, _ = linear_attention(*given, kernel, visible, window, *gain, decay=decay)
    assert np.isnan(output[:, 7:]).all()


def test_an_empty_piece_has_gradients():
    *given, decay, gain = GATED["gated causal, window"].inputs()
    visible, options = ops.Visibility(causal=True), (softmax_kernel(), 5, gain)
    empty = [x[:, :0] for x in (*given, decay)]

    def attend(query, key, value, gates, state=None):
        given, (kernel, *others) = (query, key, value), options
        return linear_attention(*given, kernel, visible, *others, state, decay=gates)

    _, state = attend(*given, decay)

    @tf.function
    def step(*inputs):
        return value_and_gradients(lambda *x: attend(*x, state)[0], inputs)

    _, *gradients = step(*empty)
    assert [x.shape for x in gradients] == [x.shape for x in empty]
