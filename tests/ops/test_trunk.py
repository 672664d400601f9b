"""Linear attention of every form beside its float64 twin: outputs and gradients.

A form is a row of `FORMS`; tests take them all, or those that they are about.
"""

import itertools
import typing

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference
from keras_performer.ops.linear_attention import linear_attention

from .cases import (
    HEAD_DIM,
    float64,
    normal,
    qkv,
    relative_error,
    softmax_kernel,
    value_and_gradients,
)

# Chunks are of 64 tokens: the third one has two.
LENGTH, CHUNK = 130, 64
# Segments of one token, within a chunk, over two, and one that starts with a chunk.
FIRSTS = (0, 1, 9, 64, 129), (0, 70, 75)


class Form(typing.NamedTuple):
    """The arguments of an operation and of its twin."""

    causal: bool
    window: int | None = None
    packed: bool = False

    def inputs(self, std=1.0, length=LENGTH):
        """Query, key, value and, with a window, the gain: two heads, one key head."""
        inputs = [x[:, :length] for x in qkv(2, LENGTH, LENGTH, 1, 2, std, "float32")]
        if not self.window:
            return inputs
        # far keys weigh about as much as near ones, however large inputs are
        return [*inputs, 2 * (std**2 - 1) + normal((2,), 9, dtype="float32")]

    def ours(self, mask=None, cuts=(), firsts=FIRSTS):
        """The operation, with a state from piece to piece where it is cut."""

        def attend(query, key, value, gain=None):
            outputs, state, length = [], None, query.shape[1]
            for piece in map(slice, (0, *cuts), (*cuts, length)):
                parts = mask, _starts(self.packed, length, firsts)
                seen, starts = (x if x is None else x[:, piece] for x in parts)
                visible = ops.Visibility(seen, self.causal, starts=starts)
                given = (x[:, piece] for x in (query, key, value))
                options = visible, self.window, gain, state
                output, state = linear_attention(*given, softmax_kernel(), *options)
                outputs.append(output)
            return tf.concat(outputs, 1)

        return attend

    def twin(self, mask=None, firsts=FIRSTS):
        def attend(query, key, value, gain=None):
            return reference.attention(
                *(query, key, value, softmax_kernel(), mask, self.causal),
                exact_window=self.window,
                log_gain=gain,
                starts=_starts(self.packed, query.shape[1], firsts),
            )

        return attend


def _starts(packed, length, firsts):
    if not packed or not length:
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
}
CAUSAL = [name for name, form in FORMS.items() if form.causal]
PACKED = [name for name, form in FORMS.items() if form.packed]
# Tokens one by one: each takes seconds.
SLOW = [name for name, form in FORMS.items() if form.packed and form.window]


def forms(names, but=()):
    """A test of each of these forms."""
    params = [pytest.param(FORMS[n], id=n) for n in names if n not in but]
    return pytest.mark.parametrize("form", params)


def pairs(names, first, second, but=()):
    """Two values for each of these forms, which share out all of them in turn."""
    both = itertools.cycle([first, second])
    return [
        pytest.param(FORMS[name], value, id=f"{name}-{value}")
        for name, values in zip(names, both)
        if name not in but
        for value in values
    ]


def assert_is_twin(found, twin, std=1.0):
    """Of outputs and gradients of inputs of this std; float32 is about twice as close.

    The gain's gradient, a small difference of large sums, has the largest errors.
    """
    bounds = 2e-6, *3 * [5e-6 * std], 5e-6 * std**2
    errors = [relative_error(x, y) for x, y in zip(found, twin, strict=True)]
    assert all(x < bound for x, bound in zip(errors, bounds)), errors


def both(form, inputs, mask=None, cuts=(), firsts=FIRSTS):
    """Outputs and gradients of the operation in float32, and of the twin."""
    found = value_and_gradients(form.ours(mask, cuts, firsts), inputs)
    twin = value_and_gradients(form.twin(mask, firsts), float64(*inputs))
    # no far key, no gradient of the gain
    found = [tf.zeros_like(y) if x is None else x for x, y in zip(found, twin)]
    return found, twin


@pytest.mark.parametrize("form, std", pairs(FORMS, (1.0, 8.0), (1.0, 16.0)))
def test_inputs_of_every_size(form, std):
    assert_is_twin(*both(form, form.inputs(std)), std)


@pytest.mark.parametrize("form, length", pairs(FORMS, (0, 2, 63), (1, 64, 65)))
def test_short_sequences(form, length):
    found, twin = both(form, form.inputs(length=length))
    assert [x.shape for x in found] == [x.shape for x in twin]
    if length:
        assert_is_twin(found, twin)


@pytest.mark.parametrize(
    "cuts, std", [((1, 63), 1.0), ((64, 65, 101), 8.0), ((70, 71, 72, 129), 1.0)]
)
@forms(CAUSAL, but=SLOW)
def test_a_sequence_cut_into_states(form, cuts, std):
    assert_is_twin(*both(form, form.inputs(std), cuts=cuts), std)


@forms(SLOW[:1])
def test_packed_windows_cut_into_states(form):
    assert_is_twin(*both(form, form.inputs(), cuts=(9, 70, 71, 120)))


@pytest.mark.parametrize(
    "form, std, hidden",
    [
        (FORMS[name], *((8.0, 1e30) if "long" in name else (1.0, np.nan)))
        for name in FORMS
        if name not in SLOW
    ],
)
def test_masked_keys(form, std, hidden):
    """The first ones, some within, and of one segment all."""
    place = np.arange(LENGTH)
    mask = np.stack([(place > 0) & (place % 5 != 3), place >= 70])
    inputs, hides = form.inputs(std), ~mask[..., None, None]
    inputs[1] = tf.where(hides, 0.0, inputs[1])
    _, twin = both(form, inputs, mask)
    inputs[1] = tf.where(hides, tf.constant(hidden, "float32"), inputs[1])
    found = value_and_gradients(form.ours(tf.constant(mask)), inputs)
    assert_is_twin(found, twin, std)
    for gradient in found[2:4]:
        np.testing.assert_array_equal(np.where(hides, gradient, 0), 0)


def one_key_above(place, form):
    """Inputs of which the key at one place is some 80 nats above all others.

    By exact weights and by features: queries look away from the others, and these are
    far from all rows of the projection. Gradients of queries and keys nearly vanish, so
    that their errors are large beside them: up to 4e-4 today.
    """
    inputs, root = form.inputs(), HEAD_DIM**0.25
    direction = np.eye(HEAD_DIM, dtype="float32")[0] * root
    query = 5.0 * direction + inputs[0]
    others = -16.0 * direction + inputs[1]
    is_above = np.arange(LENGTH)[:, None, None] == place
    return [query, tf.where(is_above, 0.1 * inputs[1], others), *inputs[2:]]


def test_the_key_is_80_nats_above():
    query, key, _ = (x[0, :, 0] for x in one_key_above(70, FORMS["causal"]))
    logits = (query @ tf.transpose(key)).numpy() / HEAD_DIM**0.5
    above = logits[:, 70:71] - np.delete(logits, 70, 1)
    y, matrix = key / HEAD_DIM**0.25, softmax_kernel().projection_matrix
    logs = y @ tf.transpose(matrix) - tf.reduce_sum(y**2, 1, keepdims=True) / 2
    rise = logs[70] - tf.reduce_max(np.delete(logs, 70, 0), 0)
    assert 60 < np.median(above) < 100 and 60 < np.median(rise) < 110


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


@forms(["packed causal, window", "packed bidirectional"])
def test_one_key_80_nats_above_another_segment(form):
    """The last key of a segment, and in the other example the first one."""
    firsts = (0, 71), (0, 70)
    inputs = one_key_above(70, form)
    assert_is_twin(*both(form, inputs, firsts=firsts), 160.0)


CHANGED = 100


@pytest.mark.parametrize("std, size", [(1.0, 1e4), (12.0, 0.0)])
@forms(CAUSAL)
def test_no_later_key_moves_a_bit(form, size, std):
    """Of outputs of earlier chunks and their gradients; of its own only by rounding."""
    query, key, *rest = form.inputs(std)
    scale = np.where(np.arange(LENGTH) == CHANGED, size, 1.0)[:, None, None]
    changed = key * tf.constant(scale, "float32")

    def early(*inputs):
        return form.ours()(*inputs)[:, :CHUNK]

    before, after = (form.ours()(query, x, *rest) for x in (key, changed))
    np.testing.assert_array_equal(before[:, :CHUNK], after[:, :CHUNK])
    np.testing.assert_allclose(
        before[:, CHUNK:CHANGED], after[:, CHUNK:CHANGED], atol=2e-5
    )
    if size == 0.0 or form.window:  # features give a huge key no weight
        assert np.abs(before - after)[:, CHANGED:].max() > 1e-3
    before, after = (
        value_and_gradients(early, [query, x, *rest]) for x in (key, changed)
    )
    for x, y in zip(before, after):
        np.testing.assert_array_equal(x, y)
    for gradient in after[1:4]:
        np.testing.assert_array_equal(gradient[:, CHUNK:], 0)
