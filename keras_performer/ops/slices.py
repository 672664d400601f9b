"""Sequences cut into slices, one slice for each replica of a `tf.distribute` strategy.

A replica needs of the other slices only what later tokens need of earlier ones: the
state of linear attention and, with a window, the last keys. The replicas exchange
these, at a size that does not depend on the length, and each continues its slice from
the state of all slices before it.

    state before slice i = state of slice 0 o ... o state of slice i - 1

o merges two states (`sum_of_states`). In bidirectional attention the same holds for the
reversed sequence.

Reference: arXiv 2502.07563 (LASP-2: all states to all replicas).
"""

import contextlib
import dataclasses
import threading
import typing
import weakref

import tensorflow as tf

from keras_performer.ops import decays
from keras_performer.ops.checks import check_attention_inputs, check_decay
from keras_performer.ops.linear.bidirectional import attend_both_ways, reversed_inputs
from keras_performer.ops.local import attention as local
from keras_performer.ops.local.attention import local_attention
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.shapes import compute_dtype, pad, size
from keras_performer.ops.state import State, absorb, answer, merged, sum_of_states
from keras_performer.ops.visibility import Visibility
from keras_performer.ops.windowed import WindowedState, linear_attention


@dataclasses.dataclass(frozen=True)
class Slices:
    """The slices of the sequences of a batch, seen from one replica.

    Attributes:
        count: int, number of slices and replicas.
        index: int32 scalar tensor, the slice of this replica.
        context: the replica's `tf.distribute.ReplicaContext`.
    """

    count: int
    index: tf.Tensor
    context: tf.distribute.ReplicaContext

    def gather(self, *tensors):
        """Returns the tensors of all slices, each `(count, ...)`.

        The gradient of a tensor is the sum of the gradients of all replicas.
        """
        own = tf.range(self.count) == self.index
        found = [_where(own, x[tf.newaxis]) for x in tensors]
        # a strategy joins the tensors that it sums
        for dtype in dict.fromkeys(x.dtype for x in tensors):
            indices = [i for i, x in enumerate(tensors) if x.dtype == dtype]
            sums = self.context.all_reduce("SUM", [found[i] for i in indices])
            for i, total in zip(indices, sums):
                found[i] = total
        return found

    def neighbour(self, *tensors, after=False):
        """Returns the tensors of the slice before or after; zeros where there is none.

        They are floats, bools or ints, of equal shapes in all slices.
        """
        wanted = tf.range(self.count) == self.index + (1 if after else -1)
        found = self.gather(*map(_addable, tensors))
        found = [tf.reduce_sum(_where(wanted, x), 0) for x in found]
        return [_restored(x, like.dtype) for x, like in zip(found, tensors)]


# The strategies whose replicas hold slices of the same sequences.
_strategies: weakref.WeakSet = weakref.WeakSet()


def cut_for(strategy):
    """Makes the replicas of a strategy hold slices of the same sequences."""
    _strategies.add(strategy)


def is_cut(strategy):
    """Returns True after `cut_for`."""
    return strategy in _strategies


# Each replica may run in a thread of its own.
_local = threading.local()


def current_slices():
    """Returns the `Slices` of the replica that calls; `None` outside of replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or not is_cut(context.strategy):
        return None
    if context.num_replicas_in_sync == 1 or getattr(_local, "alone", False):
        return None
    count, index = context.num_replicas_in_sync, context.replica_id_in_sync_group
    return Slices(count, tf.cast(index, tf.int32), context)


@contextlib.contextmanager
def alone():
    """Lets layers of this replica exchange nothing: they get states instead."""
    before, _local.alone = getattr(_local, "alone", False), True
    try:
        yield
    finally:
        _local.alone = before


class Earlier(typing.NamedTuple):
    """Everything that later tokens need of earlier ones.

    Attributes:
        far: `State` of the far keys, decayed up to the last of them; `None` if there
            are none.
        near: `Recent` keys of the window, or `None` without a window.
    """

    far: State | None
    near: Recent | None = None

    @classmethod
    def of(cls, state):
        """Returns the parts of a state of `linear_attention`."""
        near = Recent(*state[2:]) if len(state) > 2 else None
        return cls(State(*state[:2]), near)

    def as_state(self):
        """Returns the state that `linear_attention` takes."""
        if self.near is None:
            return self.far
        return WindowedState(*self.far, *self.near)


def state_after(kernel, key, value, visible, earlier, decay=None):
    """Adds keys to a state, as causal attention does, without answering queries.

    `kernel` has the dtype of the loops; `key` and `value` are `(B, T, K, ...)`,
    log-decays `(B, T, K)`. Returns `Earlier` of the tokens after these, and the
    log-decay of the added far keys, `(B, K)`, or `None`.
    """
    far, near = earlier
    keys, starts = Recent.of(key, value, visible.key_mask, decay), visible.starts
    window = 0 if near is None else near.seen.shape[1]
    if near is not None:
        joined = near.followed_by(keys)
        near, keys = keys.last(window, near, starts), joined.between(0, -window)
    seen, ended = keys.seen, None
    if starts is not None:
        # a key counts if no later token starts a segment
        later = tf.cast(pad(starts, [[0, 0], [window, 0]]), tf.int32)
        later = tf.cumsum(later, 1, exclusive=True, reverse=True)
        seen = tf.logical_and(seen, later[:, : size(seen, 1)] == 0)
        ended = tf.reduce_any(starts, 1)
    logs = total = None
    if keys.decay is not None:
        dtype = compute_dtype(key, value)
        sums = decays.sums_to_end(decays.gates(keys.decay, dtype))
        total, logs = sums[:, 0], tf.pad(sums[:, 1:], [[0, 0], [0, 1], [0, 0]])
    added = absorb(kernel, keys.key, keys.value, seen, logs)
    if far is not None:
        added = merged(far, added, total, ended)
    return Earlier(added, near), total


def before_slice(slices, kernel, after_slice, total, starts=None, after=False):
    """Exchanges states, and returns `Earlier` of this replica's slice.

    Args:
        slices, kernel: as in `attend_slice`; the kernel has the dtype of the loops.
        after_slice, total: from `state_after`, of the keys of this slice alone.
        starts: as in `Visibility`, or `None`. A first token is a start if its segment
            does not continue the slice before.
        after: bool, true if the sequence is reversed: the slices after this one then
            come before it.
    """
    far, near = after_slice
    ended = None if starts is None else tf.reduce_any(starts, 1)
    if near is not None:
        near = _near_before(slices, near, after)
        # these keys are far from the last tokens of this slice
        given = near.key, near.value, Visibility(near.seen), Earlier(None), near.decay
        earlier, of_near = state_after(kernel, *given)
        far = merged(earlier.far, far, total, ended)
        total = None if total is None else total + of_near
    return Earlier(_sum_before(slices, far, total, ended, after), near)


def earlier_keys(slices, kernel, key, value, visible, window, decay, after=False):
    """Returns `Earlier` of a slice of keys; arguments are as there."""
    check_slice(key, window)
    near = None
    if window is not None:
        shape = size(key, 0), window, key.shape[2], key.shape[3], size(value, 3)
        near = Recent.empty(*shape, key.dtype, decay is not None)
    found = state_after(kernel, key, value, visible, Earlier(None, near), decay)
    return before_slice(slices, kernel, *found, visible.starts, after)


def attend_slice(
    slices,
    query,
    key,
    value,
    kernel,
    visible,
    exact_window=None,
    log_gain=None,
    chunk_size=None,
    decay=None,
):
    """Computes `linear_attention` of a slice of a sequence to all slices.

    Arguments besides `slices` are as there, for the slice of this replica. Returns a
    tensor `(B, T, N, V)` in the dtype of `query`.
    """
    check_attention_inputs(query, key, value, visible)
    kernel.check_heads(key.shape[2])
    dtype = compute_dtype(query, key, value)
    kernel, decay = kernel.astype(dtype), check_decay(decay, query, key, value)
    given = slices, kernel, key, value, visible, exact_window, decay
    if visible.causal:
        inputs = query, key, value, kernel, visible, exact_window, log_gain
        state = earlier_keys(*given).as_state()
        output, _ = linear_attention(*inputs, state, chunk_size, decay=decay)
    elif exact_window is None and visible.starts is None and decay is None:
        state = absorb(kernel, key, value, visible.key_mask)
        output = answer(kernel, query, sum_of_states(*slices.gather(*state)))
    else:
        gain = None
        if exact_window is not None:
            gain = tf.cast(log_gain, dtype)[:, tf.newaxis]
        inputs = query, key, value, exact_window or 0, gain, chunk_size
        ends = both_ends(*given)
        output = attend_both_ways(kernel, visible, *inputs, decay=decay, ends=ends)
    return tf.cast(output, query.dtype)


def attend_slice_locally(
    slices, query, key, value, sliding_window, visible, decay=None
):
    """Computes `local_attention` of a slice of a sequence, with keys of its neighbours.

    Arguments besides `slices` are as there, for the slice of this replica. Returns a
    tensor `(B, T, N, V)` in the dtype of `query`.
    """
    window, starts = sliding_window, visible.starts
    check_slice(key, window)
    keys = Recent.of(key, value, visible.key_mask, decay)
    left = _near_before(slices, keys.last(window, None, starts), False)
    if visible.causal:
        inputs = query, key, value, window, visible
        return local_attention(*inputs, state=left, decay=decay)[0]
    _, back, _ = reversed_slice(slices, visible, None)
    # the gates of later keys decay pairs like those of any other token
    right = keys.reversed().last(window, None, back)
    right = _near_before(slices, right, True).reversed()
    keys = left.followed_by(keys).followed_by(right)
    if starts is not None:
        # only the first later token may start a segment: further ones are hidden
        starts = pad(starts, [[0, 0], [window, 0]])
        first = pad(back[:, :1], [[0, 0], [0, window - 1]])
        starts = tf.concat([starts, first], 1)
    # no query counts in the tokens of the neighbours
    rows = tf.pad(query, [[0, 0], [window, window], [0, 0], [0, 0]])
    output, _ = local.attend(None, rows, keys, None, window, False, False, starts)
    return tf.cast(output[:, window:-window], query.dtype)


def _near_before(slices, near, after):
    """Returns the last keys of the slice before, given those of this slice."""
    sent = [x for x in near if x is not None]
    return Recent(*slices.neighbour(*sent, after=after))


def check_slice(x, window):
    """Raises an error for a slice shorter than a window, which may be `None`."""
    if window is not None:
        check_length(x, window, f"as long as the window, {window} tokens")


def check_length(x, least, wanted):
    """Raises an error, now or in a running graph, for a slice `(B, T, ...)` too short.

    A slice needs tokens of the next slice only, so it must have `least` tokens.
    """
    length = size(x, 1)
    message = (
        f"Each slice of a sequence must be {wanted}: use fewer replicas or longer "
        "sequences. Received: slices of "
    )
    if not isinstance(length, int):
        tf.debugging.assert_less_equal(least, length, f"{message}fewer")
    elif length < least:
        raise ValueError(f"{message}{length} tokens")


def reversed_slice(slices, visible, decay):
    """Returns `reversed_inputs` of the slice."""
    given = [x for x in (visible.starts, decay) if x is not None]
    found = iter(slices.neighbour(*(x[:, :1] for x in given), after=True))
    after = [None if x is None else next(found) for x in (visible.starts, decay)]
    return reversed_inputs(visible, decay, after)


def both_ends(slices, kernel, key, value, visible, window, decay):
    """Returns `ends`, as in `attend_both_ways`, of a slice."""
    back = reversed_slice(slices, visible, decay)
    left = earlier_keys(slices, kernel, key, value, visible, window, decay)
    mask, starts, moved = back
    turned = visible._replace(key_mask=mask, starts=starts)
    key, value = (tf.reverse(x, [1]) for x in (key, value))
    given = key, value, turned, window, moved
    return back, left, earlier_keys(slices, kernel, *given, after=True)


def _sum_before(slices, state, total, ended, after):
    """Returns the sum of the states of all slices before this one.

    `state` is the `State` of this slice, decayed up to its end; `total` its log-decay,
    `(B, K)`, or `None`; and `ended`, bool `(B,)` or `None`, tells whether a segment
    starts in it.
    """
    position, own = tf.range(slices.count), slices.index
    if after:
        position, own = -position, -own
    counts = position < own
    # [j, l]: slice l lies between slice j and this one
    between = (position[:, tf.newaxis] < position) & (position < own)
    sent = list(state)
    if total is not None:
        sent.append(total)
    if ended is not None:
        sent.append(tf.cast(ended, state.sums.dtype))
    r, sums, *found = slices.gather(*sent)
    counts, logs = counts[:, tf.newaxis, tf.newaxis], None
    if total is not None:
        # not a product of matrices, which may round log-decays
        logs = tf.reduce_sum(_where(between, found[0]), 1)
    if ended is not None:
        ended = tf.reduce_any(_where(between, found[-1]) > 0, 1)
        counts = tf.logical_and(counts, tf.logical_not(ended)[..., tf.newaxis])
    return sum_of_states(r, sums, logs, counts)


def _where(mask, x):
    """Returns x where a mask is true, else zeros; its last axis is the first of x."""
    mask = tf.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - 1)))
    return tf.where(mask, x, tf.zeros_like(x))


def _addable(x):
    """Returns ints or bools as int32, which all devices can add; floats stay."""
    if x.dtype.is_floating:
        return x
    return tf.bitcast(x, tf.int32) if x.dtype == tf.int64 else tf.cast(x, tf.int32)


def _restored(x, dtype):
    """Inverts `_addable`."""
    return tf.bitcast(x, dtype) if dtype == tf.int64 else tf.cast(x, dtype)
