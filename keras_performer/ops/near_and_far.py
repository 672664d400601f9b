"""Exact weights of near keys and estimated ones of far keys, as one operation.

Near keys come from the loops of local attention, far ones from those of causal
attention: those before the window, and unless later keys are hidden those after it, in
the reversed sequence. Backward each loop takes the output and the log-sums of all keys,
so that those of the parts are not kept.
"""

import functools
import typing

import numpy as np
import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.linear import causal_far
from keras_performer.ops.local import loops as local
from keras_performer.ops.local.recent import Recent, reach_within
from keras_performer.ops.segments import reversed_starts, segment_numbers
from keras_performer.ops.shapes import size
from keras_performer.ops.state import State
from keras_performer.ops.visibility import Visibility

# Far weights count if they are more than so many units of rounding of all weights.
ROUNDING = 100


class Places(typing.NamedTuple):
    """Which keys are near to which query, and which are far.

    Attributes:
        window: near keys stand at less than this distance; 0 if none is near.
        first: the place of the first near key among all keys.
        before: how many near keys stand before the key of the first query.
        skipped: how many of the first queries have no far key. The first of the others
            sees the first key, and each further query one more.
        causal: whether later keys are hidden.
    """

    window: int
    first: int
    before: int
    skipped: int
    causal: bool


def attend(kernel, query, keys, gain, state, places, starts, chunk_size, jit_compile):
    """Attention to near and far keys, under one normalizer.

    Args:
        kernel: a `Kernel` in the dtype of the loops.
        query: tensor `(B, T, N, H)`.
        keys: `Recent`, all keys; `seen` may be `None`.
        gain: tensor `(N, 1)`, the logarithm of what multiplies far weights.
        state: `State` before the keys.
        places: `Places` of the keys.
        starts: as in `Visibility`, of the queries.
        chunk_size, jit_compile: as in `causal_attention`.

    Returns:
        `(output, log_sums, state)`: tensors `(B, T, N, V)` and `(B, T, N, 1)` in the
        dtype of the loops; and the `State` after the far keys of the last query.
    """
    heads = Heads(query, keys.key, keys.value)
    r_start, sums_start = heads.state_rows(state)
    r_start = tf.stop_gradient(r_start)

    @tf.custom_gradient
    def attention(query, key, value, gain, sums_start, *trained):
        every = Recent(key, value, keys.seen)
        given = places, starts, chunk_size, query, every, gain
        inputs = kernel.with_trained(trained), *given
        output, log_sums, r, sums, *saved = compile.call(
            _forward, *inputs, r_start, sums_start, jit_compile=jit_compile
        )

        def gradient(doutput, dlog_sums, dr, dsums):
            ends = output, log_sums, *saved, doutput, dlog_sums, dsums
            return compile.call(_backward, *inputs, *ends, jit_compile=jit_compile)

        return (output, log_sums, r, sums), gradient

    output, log_sums, r, sums = attention(
        query, keys.key, keys.value, gain, sums_start, *kernel.trained
    )
    return output, log_sums, State(*heads.state(tf.stop_gradient(r), sums))


def joined(parts):
    """The weighted means of sets of keys as one weighted mean of them all.

    Args:
        parts: list of `(output, log_sums)`, `(B, T, N, V)` and `(B, T, N, 1)`: weighted
            means of values, and the logarithms of the sums of their weights.

    Returns:
        `(output, log_sums)`, of the same shapes.
    """
    if len(parts) == 1:
        return parts[0]
    outputs, logs = zip(*parts)
    logs = tf.concat(logs, -1)
    shares = tf.nn.softmax(logs)
    output = tf.add_n(
        [output * shares[..., i : i + 1] for i, output in enumerate(outputs)]
    )
    return output, tf.reduce_logsumexp(logs, -1, keepdims=True)


def _forward(kernel, places, starts, chunk_size, query, keys, gain, r, sums):
    """The output, log-sums and state, and what `_backward` needs.

    That is of each side what its loop needs, and which queries have far weights that
    count: the gradient of their gain is what near weights leave over, which is but
    rounding where far ones are a few of its units.
    """
    parts, far, ends, kept = [], [], [], []
    if places.window:
        near = query, *_near_keys(places, query, keys)
        options = _local_options(places, starts, query)
        parts.append(local.forward_pass(None, options, *near))
    left_out = kernel.log_left_out(tf.cast(query, gain.dtype))
    for side in _sides(places, starts, query):
        with _after(parts):
            inputs = side.inputs(kernel, chunk_size, query, keys)
            output, logs, *end, states = causal_far.forward(*inputs, r, sums)
            output, logs = side.of_own_segment(output, logs)
            logs = side.placed_queries(logs, query, EMPTY)
            sees = logs > tf.constant(EMPTY, logs.dtype)
            output = side.placed_queries(output, query)
            far.append(logs + left_out + gain)
            parts = [joined([*parts, (output, far[-1])])]
        ends.append(end)
        kept.append((sees, end[0], states))
    output, log_sums = parts[0]
    far = tf.reduce_logsumexp(tf.concat(far, -1), -1, keepdims=True)
    some = functools.reduce(tf.logical_or, (sees for sees, *_ in kept))
    least = ROUNDING * np.finfo(log_sums.dtype.as_numpy_dtype).eps
    counts = tf.logical_and(some, tf.exp(far - log_sums) > least)
    return output, log_sums, *ends[0], kept, counts


def _backward(
    kernel,
    places,
    starts,
    chunk_size,
    query,
    keys,
    gain,
    output,
    log_sums,
    kept,
    counts,
    *dends,
):
    """Gradients of query, key, value, gain, sums, and what of the kernel trains."""
    doutput, dlog_sums, dsums = dends
    # the gradients of a row's logits add up to that of its log-sum
    dfar, gradients = dlog_sums, []
    if places.window:
        near = query, *_near_keys(places, query, keys)
        ends = output, log_sums, doutput, dlog_sums
        options = _local_options(places, starts, query)
        dquery, *dkeys, total = local.backward_pass(None, options, *near, *ends)
        gradients = [dquery, *(_placed(x, places.first, keys.key) for x in dkeys)]
        dfar -= total
    dfar = tf.where(counts, dfar, tf.zeros_like(dfar))
    x = tf.cast(query, gain.dtype)
    logs = log_sums - gain - kernel.log_left_out(x)
    others = []
    for side, (sees, r_end, states) in zip(_sides(places, starts, query), kept):
        with _after(gradients):
            rows = output, logs, sees, doutput, dlog_sums
            rows = [side.far_queries(z) for z in rows]
            inputs = side.inputs(kernel, chunk_size, query, keys)
            dquery, dkey, dvalue, *more = causal_far.backward(
                *inputs, *rows, states, r_end, dsums
            )
            found = [side.placed_queries(dquery, query)]
            found += [side.placed_keys(x, keys.key) for x in (dkey, dvalue)]
            gradients = [tf.add_n(x) for x in zip(*filter(None, (gradients, found)))]
        others.append(more)
    dquery, dkey, dvalue = gradients
    dquery += tf.cast(kernel.pull_left_out(x, dfar), dquery.dtype)
    dgain = tf.reduce_sum(dfar, (0, 1))
    return dquery, dkey, dvalue, dgain, *map(tf.add_n, zip(*others))


def _after(tensors):
    """One loop after the other: side by side, they would need the memory of all."""
    return tf.control_dependencies(tf.nest.flatten(tensors))


def _near_keys(places, query, keys):
    keys = Recent.of(*keys)
    length = places.before + size(query, 1)
    return keys.between(places.first, places.first + length)


def _local_options(places, starts, query):
    """What the loops of local attention are told."""
    reach = places.before or reach_within(places.window, query, None)
    numbers = None
    if starts is not None:
        numbers = tf.pad(segment_numbers(starts), [[0, 0], [places.before, 0]])
    return reach, places.before, places.window, places.causal, numbers


def _sides(places, starts, query):
    """Where far keys are: before the window, and after it."""
    tokens = size(query, 1) - places.skipped
    if not isinstance(tokens, int):
        tokens = tf.maximum(tokens, 0)
    last = size(query, 1) - tokens
    # the first far key stands a window before the first query that sees one
    turned = None if starts is None else reversed_starts(starts)
    lead = places.window - places.skipped
    sides = [
        _Side(False, tokens, last, 0, starts, lead),
        _Side(True, tokens, 0, last, turned, lead),
    ]
    return sides[:1] if places.causal else sides


class _Side(typing.NamedTuple):
    """The far keys to one side of the queries, and the queries that see some.

    Attributes:
        turned: whether the order is reversed, for keys after the queries.
        tokens: int or scalar tensor, how many queries and keys there are.
        query_start, key_start: which is the first of each.
        starts: which tokens start a segment, in the order of this side, or `None`.
        lead: how many keys stand before the first token.
    """

    turned: bool
    tokens: int | tf.Tensor
    query_start: int | tf.Tensor
    key_start: int | tf.Tensor
    starts: tf.Tensor | None
    lead: int

    def inputs(self, kernel, chunk_size, query, keys):
        """What both passes of `causal_far` take first."""
        key, value, mask = (x if x is None else self.far_keys(x) for x in keys)
        visible = Visibility(mask, causal=True, starts=self._key_starts())
        return kernel, visible, chunk_size, self.far_queries(query), key, value

    def of_own_segment(self, output, logs):
        """Nothing where the last far key is of another segment than the query."""
        if self.starts is None:
            return output, logs
        first = size(self.starts, 1) - self.tokens
        own = segment_numbers(self.starts)[:, first:]
        own = own == segment_numbers(self._key_starts())
        own = own[..., tf.newaxis, tf.newaxis]
        output = tf.where(own, output, tf.zeros_like(output))
        return output, tf.where(own, logs, tf.constant(EMPTY, logs.dtype))

    def _key_starts(self):
        if self.starts is None:
            return None
        return tf.pad(self.starts, [[0, 0], [self.lead, 0]])[:, : self.tokens]

    def far_queries(self, x):
        return self._cut(x, self.query_start)

    def far_keys(self, x):
        return self._cut(x, self.key_start)

    def placed_queries(self, x, like, fill=0.0):
        return _placed(self._turn(x), self.query_start, like, fill)

    def placed_keys(self, x, like):
        return _placed(self._turn(x), self.key_start, like)

    def _cut(self, x, start):
        return self._turn(x[:, start : start + self.tokens])

    def _turn(self, x):
        return tf.reverse(x, [1]) if self.turned else x


def _placed(x, start, like, fill=0.0):
    """x from the place `start` on in a sequence as long as that of `like`."""
    after = size(like, 1) - start - size(x, 1)
    ends = [[0, 0], [start, after], [0, 0], [0, 0]]
    x = tf.pad(x, ends, constant_values=fill)
    return tf.ensure_shape(x, (None, like.shape[1], None, None))
