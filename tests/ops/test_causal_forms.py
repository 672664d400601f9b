"""The three forms of a block of causal attention: when each is used; all agree."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference
from keras_performer.ops.linear import causal_stable, causal_tokens

from .cases import (
    KERNELS,
    assert_all_close,
    float64,
    masks,
    normal,
    qkv,
    softmax_kernel,
    value_and_gradients,
)
from .segment_cases import ids


def attend(kernel, inputs, mask=None):
    def attention(query, key, value):
        return ops.causal_attention(query, key, value, kernel, mask, chunk_size=8)[0]

    return value_and_gradients(attention, inputs)


def inputs(std=1.0, length=96):
    query, key = (normal((2, length, 2, 16), (3, i), std, "float32") for i in range(2))
    return query, key, normal((2, length, 2, 3), (3, 2), dtype="float32")


@pytest.fixture
def calls(monkeypatch):
    """Counts the blocks that take each safe form; eager, only one form runs."""
    counts = {}

    def counting(module, name):
        function = getattr(module, name)
        counts[form := (module.__name__.rpartition("_")[2], name)] = 0

        def counted(*args):
            counts[form] += 1
            return function(*args)

        monkeypatch.setattr(module, name, counted)

    for module in (causal_stable, causal_tokens):
        counting(module, "forward")
        counting(module, "backward")
    return counts


def times(stable, tokens):
    """What `calls` counts; the token-by-token form first tries the stable one."""
    return {
        ("stable", "forward"): stable + tokens,
        ("stable", "backward"): stable,
        ("tokens", "forward"): tokens,
        ("tokens", "backward"): tokens,
    }


@pytest.mark.parametrize("padding", [0, 1, 40])
@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_ordinary_and_left_padded_sequences_need_no_safe_form(calls, std, padding):
    mask = np.arange(96)[None] >= np.array([[padding], [0]])
    attend(softmax_kernel(32, 16), inputs(std), mask if padding else None)
    assert calls == times(stable=0, tokens=0)


def test_a_block_whose_first_key_is_dwarfed_needs_one_and_no_other_block(calls):
    query, key, value = inputs()
    scale = np.where(np.arange(96) == 0, 8.0, 1.0)
    key *= tf.constant(scale[:, None, None], "float32")
    attend(softmax_kernel(32, 16), (query, key, value))
    assert calls == times(stable=1, tokens=0)


@pytest.mark.parametrize("head_dim", [16, 64])
def test_large_queries_and_keys_do_without_single_tokens(calls, head_dim):
    """There is no cliff: what training may walk into takes chunks still."""
    kernel = softmax_kernel(4 * head_dim, head_dim)
    given = [normal((1, 256, 2, head_dim), i, std=8, dtype="float32") for i in range(3)]
    output, _ = ops.causal_attention(*given, kernel)
    assert calls[("stable", "forward")] > 0 and calls[("tokens", "forward")] == 0
    exact = reference.attention(*float64(*given), kernel.astype("float64"), causal=True)
    assert_all_close([output], [exact], 1e-3)


def test_a_token_that_sees_only_keys_against_it_needs_single_tokens(calls):
    """The largest features of query and key are other ones by hundreds of nats."""
    query, key, value = inputs(std=16.0)
    given = [-4 * key, key, value]
    kernel = softmax_kernel(32, 16)
    output = attend(kernel, given)
    assert calls[("tokens", "forward")] > 0 and calls[("tokens", "backward")] > 0
    np.testing.assert_allclose(output[0][:, 0], value[:, 0], rtol=1e-5)


# What makes every block take a form, whatever its keys are.
FORMS = {"chunks": 1e9, "stable": -1e9, "tokens": -1e9}


@pytest.mark.parametrize("mask", ["none", "different", "left"])
@pytest.mark.parametrize("name", ["softmax", "favor+", "hyperbolic_log_weights"])
@pytest.mark.parametrize(
    "form", ["chunks", "stable", pytest.param("tokens", marks=pytest.mark.slow)]
)
def test_every_form_is_attention(monkeypatch, calls, form, name, mask):
    kernel, given = KERNELS[name](), qkv(3, 40, 40, heads=2, groups=2)
    mask = dict(masks(40), none=None)[mask]
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", FORMS[form])
    if form == "stable":
        monkeypatch.setattr(causal_stable, "lost", nothing_lost)
    found = attend(kernel, given, mask)
    assert (calls[("stable", "backward")] > 0) == (form == "stable")
    assert (calls[("tokens", "backward")] > 0) == (form == "tokens")

    def exact(query, key, value):
        return reference.attention(
            query, key, value, kernel.astype("float64"), mask, causal=True
        )

    assert_all_close(found, value_and_gradients(exact, given), 1e-10)


def nothing_lost(kernel, bounds, logs):
    return tf.zeros(bounds.shape[1], tf.bool)


@pytest.mark.parametrize("std", [12.0, 20.0])
def test_the_stable_form_of_large_inputs_is_attention(calls, std):
    """Outputs, gradients, log-sums' share and the state, cut anywhere."""
    kernel, given = softmax_kernel(), qkv(2, 50, 50, heads=2, groups=2, std=std)

    def pieces(query, key, value):
        outputs, state = [], None
        for piece in (slice(0, 13), slice(13, 50)):
            cut = (x[:, piece] for x in (query, key, value))
            output, state = ops.causal_attention(
                *cut, kernel, state=state, chunk_size=8
            )
            outputs.append(output)
        return tf.concat(outputs, 1)

    def exact(query, key, value):
        kernel_ = kernel.astype("float64")
        return reference.attention(query, key, value, kernel_, causal=True)

    found, expected = (value_and_gradients(f, given) for f in (pieces, exact))
    assert_all_close(found, expected, 1e-10)
    assert calls[("stable", "backward")] > 0


# In chunks of 8, and blocks of 64 tokens. Segments of one token, shorter than the
# window and longer; they, and the first tokens that have a far key, WINDOW later, start
# with a chunk or a block, one token before it and one after it.
WINDOW = 5
FIRSTS = (0, 1, 11, 16, 20, 39, 60, 63, 65, 101), (0, 12, 15, 17, 18, 59, 72, 96)


def packed(causal):
    """Our attention over packed segments with a window, and the slow twin."""
    kernel, gain = softmax_kernel(32, 16), normal((2,), 7)
    segment_ids = ids(FIRSTS, length=120)

    def ours(*inputs):
        visible = ops.Visibility(None, causal, starts=ops.segment_starts(segment_ids))
        given = kernel, WINDOW, gain, visible, None, 8
        return ops.windowed_attention(*inputs, *given)[0]

    def twin(*inputs):
        given = kernel.astype("float64"), WINDOW, gain, None, causal, segment_ids
        return reference.windowed_attention(*inputs, *given)

    return ours, twin


@pytest.mark.parametrize("std", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_with_a_window_need_no_single_tokens(calls, causal, std):
    """Tokens without a far key in their segment have lost nothing."""
    ours, twin = packed(causal)
    wide = float64(*inputs(std, length=120))
    expected = value_and_gradients(twin, wide)
    for dtype, tolerance in ("float64", 1e-10), ("float32", 1e-4):
        given = [tf.cast(x, dtype) for x in wide]
        found = value_and_gradients(ours, given)
        assert_all_close(found, expected, tolerance)
    # of two blocks each, as segments start in both
    assert calls == times(stable=4, tokens=0)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_that_lose_weights_need_single_tokens(calls, causal):
    """All keys of one segment are against its queries by hundreds of nats."""
    ours, twin = packed(causal)
    query, key, value = float64(*inputs(length=120))
    lost = np.zeros((2, 120, 1, 1), bool)
    lost[1, 18:59] = True
    large = 16 * (key[:, :1] + 0.1 * key)
    query, key = tf.where(lost, -large, query), tf.where(lost, large, key)
    expected = value_and_gradients(twin, (query, key, value))
    for dtype, tolerance in ("float64", 1e-10), ("float32", 1e-3):
        given = [tf.cast(x, dtype) for x in (query, key, value)]
        assert_all_close(value_and_gradients(ours, given), expected, tolerance)
    # of two blocks one, of each dtype; from the end on the segment lies in both
    assert calls == (times(stable=2, tokens=2) if causal else times(0, tokens=4))


def test_padding_of_the_last_block_needs_no_single_tokens(calls):
    """Half of the second block is padding; its keys dwarf those before it."""
    query, key, value = inputs()
    scale = np.where(np.arange(96) < 64, 8.0, 1.0)
    key *= tf.constant(scale[:, None, None], "float32")

    def attention(*inputs):
        visible = ops.Visibility(causal=True)
        given = softmax_kernel(32, 16), WINDOW, None, visible, None, 8
        return ops.windowed_attention(*inputs, *given)[0]

    value_and_gradients(attention, (query, key, value))
    assert calls == times(stable=2, tokens=0)
