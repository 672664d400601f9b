"""Outputs and gradients of linear attention in every form, against float64 twins.

A form is a row of `FORMS`, or of `GATED`, which has gates and also exact weights. Some
tests take all forms, some take a few. `test_decays.py` has more tests of gates.
"""

import itertools
import typing

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.windowed import linear_attention
from tests.ops import reference

from .cases import (
    HEAD_DIM,
    KERNELS,
    float64,
    normal,
    qkv,
    relative_error,
    value_and_gradients,
)

# Chunks have 64 tokens; the third one has two.
LENGTH, CHUNK = 130, 64
# First tokens of segments: segments of one token, within a chunk, over two chunks, and
# at the start of a chunk. Small chunks have several segments, and one starts a block.
FIRSTS = (0, 1, 9, 10, 32, 64, 129), (0, 70, 75)


def gates():
    """Returns log-decays, small and large ones; some are huge or hide all keys."""
    random = np.random.default_rng(5)
    size, rare = np.abs(random.standard_normal((2, LENGTH))), random.random(LENGTH)
    first = np.where(np.arange(LENGTH) < 90, -0.3, -8.0) * size[0]
    second = np.where(np.arange(LENGTH) < 40, -8.0, -0.2) * size[1]
    first = np.where(rare < 0.03, -1e4, first)
    second = np.where(rare > 0.96, -1e30, second)
    return tf.constant(np.stack([first, second])[..., np.newaxis])


def signed_kernel():
    """Returns a kernel with positive and negative sums of weights."""
    return ops.ActivationKernel(ops.gaussian_matrix(3, HEAD_DIM, (0, 5)), tf.nn.tanh)


class Form(typing.NamedTuple):
    """Arguments of an operation and its twin.

    Without a kernel, weights are exact. With gates or small chunks, inputs are float64,
    else float32. With chunks of 4 tokens, blocks have 32.
    """

    causal: bool
    window: int | None = None
    packed: bool = False
    gated: bool = False
    kernel: str | None = "softmax"
    chunk: int | None = None

    @property
    def tolerance(self):
        # sums of the signed kernel cancel: 1 / sum has been up to 1e4
        return 1e-7 if self.kernel == "signed" else 1e-10 if self.chunk else 1e-8

    def inputs(self, std=1.0, length=LENGTH):
        """Returns query, key, value, gates and, with a window and a kernel, the gain.

        Each key head has two query heads. Small chunks come with two key heads.
        """
        dtype = "float64" if self.gated or self.chunk else "float32"
        heads = 2 if self.chunk else 1
        inputs = qkv(2, LENGTH, LENGTH, heads, 2, std, dtype)
        inputs = [*inputs, *[gates()] * self.gated]
        inputs = [x[:, :length] for x in inputs]
        if not (self.window and self.kernel):
            return inputs
        # the gain gives far and near keys similar weights for inputs of any size
        gain = normal((2 * heads,), 9, dtype=dtype)
        return [*inputs, 2 * (std**2 - 1) + gain]

    def ours(self, mask=None, cuts=(), firsts=FIRSTS):
        """Returns the operation, which passes a state from piece to piece at `cuts`."""

        def attend(query, key, value, *more):
            (decay, gain), outputs, state = self._named(more), [], None
            length = LENGTH if query.shape[1] is None else query.shape[1]
            parts = mask, self._starts(length, firsts), decay
            for piece in map(slice, (0, *cuts), (*cuts, length)):
                seen, starts, gate = (x if x is None else x[:, piece] for x in parts)
                visible = ops.Visibility(seen, self.causal, starts=starts)
                given = [x[:, piece] for x in (query, key, value)]
                output, state = self._attend(given, visible, gain, state, gate)
                outputs.append(output)
            return tf.concat(outputs, 1)

        return attend

    def _attend(self, given, visible, gain, state, decay):
        if self.kernel:
            options = self._made(), visible, self.window, gain, state, self.chunk
            return linear_attention(*given, *options, decay=decay)
        if self.window is None:
            return ops.exact_attention(*given, visible, decay=decay), None
        options = self.window, visible
        return ops.local_attention(*given, *options, state=state, decay=decay)

    def twin(self, mask=None, firsts=FIRSTS):
        def attend(query, key, value, *more):
            decay, gain = self._named(more)
            kernel = self._made() if self.kernel else None
            return reference.attention(
                *(query, key, value, kernel, mask, self.causal),
                exact_window=self.window or (None if kernel else LENGTH),
                log_gain=gain,
                starts=self._starts(query.shape[1], firsts),
                decay=decay,
            )

        return attend

    def _made(self):
        """Makes the kernel outside of graphs, as XLA would round its matrix."""
        with tf.init_scope():
            return (
                signed_kernel() if self.kernel == "signed" else KERNELS[self.kernel]()
            )

    def _named(self, more):
        """Returns the gates and the gain, or `None`."""
        decay = more[0] if self.gated else None
        return decay, more[-1] if len(more) > self.gated else None

    def _starts(self, length, firsts):
        if not self.packed or not length:
            return None
        return tf.constant([[i in first for i in range(length)] for first in firsts])


FORMS = {
    "causal": Form(True),
    "causal, window": Form(True, 5),
    "causal, long window": Form(True, 100),
    "bidirectional": Form(False),
    "bidirectional, window": Form(False, 5),
    "bidirectional, long window": Form(False, 100),
    "packed causal": Form(True, packed=True),
    "packed bidirectional": Form(False, packed=True),
    "packed causal, window": Form(True, 5, packed=True),
    "packed bidirectional, window": Form(False, 5, packed=True),
    "packed exact": Form(True, packed=True, kernel=None),
    "packed local": Form(False, 5, packed=True, kernel=None),
}
GATED = {
    "gated causal": Form(True, None, False, True),
    "gated causal, window": Form(True, 5, False, True),
    "gated causal, long window": Form(True, 100, False, True),
    "gated bidirectional": Form(False, None, False, True),
    "gated bidirectional, long window": Form(False, 100, False, True),
    "gated packed causal, window": Form(True, 5, True, True),
    "gated packed bidirectional": Form(False, None, True, True),
    "gated packed bidirectional, window": Form(False, 5, True, True),
    "taylor, gated packed causal": Form(True, 5, True, True, "taylor"),
    "taylor, gated bidirectional": Form(False, 5, False, True, "taylor"),
    "relu, gated causal": Form(True, None, False, True, "relu"),
    "relu, gated packed bidirectional": Form(False, None, True, True, "relu"),
    "gated exact": Form(True, None, False, True, None),
    "gated packed exact": Form(False, None, True, True, None),
    "gated local": Form(False, 5, False, True, None),
    "gated packed local": Form(True, 5, True, True, None),
}
SMALL_CHUNKS = {
    f"{kernel}, packed, {causal=}": Form(causal, None, True, False, kernel, 4)
    for kernel, causal in [
        ("hyperbolic_log_weights", True),
        ("signed", False),
        ("unprojected", True),
        ("elu_plus_one", True),
        *itertools.product(("favor+", "relu", "taylor"), (True, False)),
    ]
}
# Windows of one key, of two blocks and a part of one, and longer than the sequence.
WINDOWS = {
    "window of one": Form(True, 1, kernel="favor+", chunk=16),
    "bidirectional window of one": Form(False, 1, chunk=16),
    "window of two blocks": Form(False, 70, chunk=4),
    "packed window of two blocks": Form(True, 70, packed=True, chunk=4),
    "longer window": Form(True, 200, chunk=16),
    "chunks of 6": Form(False, 20, chunk=6),
}
ALL = {**FORMS, **GATED, **SMALL_CHUNKS, **WINDOWS}
CAUSAL = [n for n, form in FORMS.items() if form.causal and form.kernel]
PACKED = ["packed causal", "packed causal, window", "packed bidirectional"]
# Forms that take seconds, as their tokens are computed one by one.
SLOW = ["packed causal, window", "packed bidirectional, window"]
# Forms with a state; float64 ones are also cut at the ends of chunks.
CUT = [
    ("causal", (1, 63, 70, 71, 72, 129), 1.0),
    ("causal", (64, 65, 101), 8.0),
    ("causal, window", (1, 63, 70, 71, 72, 129), 8.0),
    ("causal, long window", (64, 65, 101), 1.0),
    ("packed causal", (1, 63, 70, 71, 72, 129), 1.0),
    # also cut less than a window after the start of a segment
    ("packed causal, window", (9, 66, 70, 71, 73, 120), 1.0),
    ("gated causal", (1, 63), 1.0),
    ("gated causal, window", (64, 65, 101), 8.0),
    ("gated causal, long window", (70, 71, 72, 129), 1.0),
    ("gated packed causal, window", (9, 66, 70, 71, 73, 120), 1.0),
    ("taylor, gated packed causal", (64, 65, 101), 1.0),
    ("relu, gated causal", (70, 71, 72, 129), 1.0),
    ("gated packed local", (9, 66, 70, 71, 73, 120), 1.0),
    *(
        (name, (9, 66, 70, 71, 73, 120), 1.0)
        for name, form in SMALL_CHUNKS.items()
        if form.causal
    ),
]


def shared(forms, first, second):
    """Pairs forms alternately with each of the first or each of the second values."""
    return [
        (name, value)
        for name, values in zip(forms, itertools.cycle([first, second]))
        for value in values
    ]


def assert_is_twin(found, twin, std=1.0, tolerance=1e-8):
    """Compares outputs and gradients; float32 bounds are two to four times the errors.

    The gain's gradient, a small difference of large sums, has the largest errors.
    """
    if found[0].dtype == tf.float64:
        for x, y in zip(found, twin, strict=True):
            scale = float(tf.reduce_max(tf.abs(y)))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale + 1e-12)
        return
    bounds = 2e-6, *3 * [1e-5 * std], 1e-5 * std**2
    errors = [relative_error(x, y) for x, y in zip(found, twin, strict=True)]
    assert all(x < bound for x, bound in zip(errors, bounds)), errors


def both(form, inputs, mask=None, cuts=(), firsts=FIRSTS):
    """Returns outputs and gradients of the operation, and of the twin."""
    found = value_and_gradients(form.ours(mask, cuts, firsts), inputs)
    twin = value_and_gradients(form.twin(mask, firsts), float64(*inputs))
    # without far keys the gain has no gradient
    found = [tf.zeros_like(y) if x is None else x for x, y in zip(found, twin)]
    return found, twin


@pytest.mark.parametrize(
    "name, std",
    [
        *shared(FORMS, (1.0, 16.0), [8.0]),
        *shared(GATED, [1.0], []),
        *((name, 1.0) for name in (*SMALL_CHUNKS, *WINDOWS)),
    ],
)
def test_inputs_of_every_size(name, std):
    form = ALL[name]
    assert_is_twin(*both(form, form.inputs(std)), std, form.tolerance)


def test_rare_chunks_of_packed_sequences(monkeypatch):
    """Tests the rare form of chunks in which segments start."""
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", -1e9)
    form = Form(True, packed=True, chunk=4)
    assert_is_twin(*both(form, form.inputs()), tolerance=form.tolerance)


@pytest.mark.parametrize(
    "name, length", shared(FORMS, (0, 2, 64), (1, 65)) + shared(GATED, [1], [])
)
def test_short_sequences(name, length):
    form = ALL[name]
    found, twin = both(form, form.inputs(length=length))
    assert [x.shape for x in found] == [x.shape for x in twin]
    if length:
        assert_is_twin(found, twin)


@pytest.mark.parametrize("name, cuts, std", CUT)
def test_a_sequence_cut_into_states(name, cuts, std):
    """Tests also masked keys, and gradients that reach keys by the state alone."""
    form, place, mask = ALL[name], np.arange(LENGTH), None
    if std == 1.0:
        mask = tf.constant(np.stack([(place > 0) & (place % 5 != 3), place >= 70]))
    found, twin = both(form, form.inputs(std), mask, cuts)
    assert_is_twin(found, twin, std, form.tolerance)


@pytest.mark.parametrize("name", [name for name in ALL if name not in SLOW])
def test_masked_keys(name):
    """Masks the first keys, some later ones, and all keys of one segment."""
    form = ALL[name]
    std, hidden = (8.0, 1e30) if form.gated or "long" in name else (1.0, np.nan)
    if form.kernel is None or form.chunk:  # these do not handle NaN
        hidden = np.inf if form.window and form.kernel is None else 1e30
    place = np.arange(LENGTH)
    mask = np.stack([(place > 0) & (place % 5 != 3), place >= 70])
    inputs, hides = form.inputs(std), ~mask[..., None, None]
    inputs[1] = tf.where(hides, tf.zeros_like(inputs[1]), inputs[1])
    _, twin = both(form, inputs, mask)
    inputs[1] = tf.where(hides, tf.constant(hidden, inputs[1].dtype), inputs[1])
    found = value_and_gradients(form.ours(tf.constant(mask)), inputs)
    assert_is_twin(found, twin, std, form.tolerance)
    for gradient in found[2:4]:
        np.testing.assert_array_equal(np.where(hides, gradient, 0), 0)


def one_key_above(place, form):
    """Returns inputs in which the key at `place` is about 80 nats above all others.

    This holds for exact weights, as queries point away from the other keys, and for
    features, as these keys are far from all rows of the projection. Gradients of
    queries and keys nearly vanish, so their relative errors are large: up to 4e-4.
    """
    inputs, root = form.inputs(), HEAD_DIM**0.25
    direction = np.eye(HEAD_DIM, dtype="float32")[0] * root
    query = 5.0 * direction + inputs[0]
    others = -16.0 * direction + inputs[1]
    is_above = np.arange(LENGTH)[:, None, None] == place
    return [query, tf.where(is_above, 0.1 * inputs[1], others), *inputs[2:]]


@pytest.mark.parametrize(
    "name, place",
    [
        ("causal", 3),
        ("causal", 70),
        ("causal, window", LENGTH - 1),
        ("bidirectional", 70),
        ("bidirectional, window", 3),
    ],
)
def test_one_key_80_nats_above_all_others(name, place):
    assert_is_twin(*both(FORMS[name], one_key_above(place, FORMS[name])), 160.0)


@pytest.mark.parametrize("name", PACKED)
def test_one_key_80_nats_above_another_segment(name):
    """Tests the last key of a segment and, in the other example, the first one."""
    firsts, form = ((0, 71), (0, 70)), FORMS[name]
    inputs = one_key_above(70, form)
    assert_is_twin(*both(form, inputs, firsts=firsts), 160.0)


CHANGED = 100


@pytest.mark.parametrize(
    "name, size",
    [
        *shared(CAUSAL, [1e4, 0.0], [0.0]),
        ("gated causal", 1e4),
        ("gated causal, window", 0.0),
    ],
)
def test_no_later_key_or_gate_moves_a_bit(name, size):
    """Outputs and gradients of earlier chunks stay; its own changes by rounding."""
    form = ALL[name]
    given = form.inputs(1.0 if size else 12.0)
    scale = np.where(np.arange(LENGTH) == CHANGED, size, 1.0)[:, None, None]
    changed = [given[0], given[1] * scale.astype(given[1].dtype.name), *given[2:]]
    if form.gated:
        later = np.arange(LENGTH)[:, None] > CHANGED
        changed[3] = tf.where(later, tf.constant(-3.0, tf.float64), given[3])

    def early(*inputs):
        return form.ours()(*inputs)[:, :CHUNK]

    before, after = (form.ours()(*inputs) for inputs in (given, changed))
    np.testing.assert_array_equal(before[:, :CHUNK], after[:, :CHUNK])
    np.testing.assert_allclose(
        before[:, CHUNK:CHANGED], after[:, CHUNK:CHANGED], atol=2e-5
    )
    if size == 0.0 or form.window:  # features give a huge key no weight
        assert np.abs(before - after)[:, CHANGED:].max() > 1e-3
    before, after = (value_and_gradients(early, inputs) for inputs in (given, changed))
    for x, y in zip(before, after):
        np.testing.assert_array_equal(x, y)
    for gradient in after[1:4]:
        np.testing.assert_array_equal(gradient[:, CHUNK:], 0)
