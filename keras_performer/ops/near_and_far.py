"""Exact weights of near keys and estimated ones of far keys, as one operation.

Near keys come from the loops of local attention, far ones from those of causal
attention: those before the window, and unless later keys are hidden those after it. The
second loop adds to what the first found. Backward each loop takes the output and the
log-sums of all keys, so that those of the parts are not kept.
"""

import typing

import numpy as np
import tensorflow as tf

from keras_performer.ops import compile
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.linear import causal_far
from keras_performer.ops.local.loops import Local
from keras_performer.ops.local.recent import Recent, reach_within
from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import size
from keras_performer.ops.state import State
from keras_performer.ops.visibility import mask_or_all

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

    @property
    def aligned(self):
        """Whether there is a key for each query, and no other."""
        return not self.first and not self.before


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

    @custom_gradient
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


def _forward(kernel, places, starts, chunk_size, query, keys, gain, r, sums):
    """The output, log-sums and state, and what `_backward` needs.

    That is what the loops of far keys need, and which queries have far weights that
    count: the gradient of their gain is what near weights leave over, which is but
    rounding where far ones are a few of its units.
    """
    far_keys, loops = _far(kernel, places, starts, chunk_size, query, keys, gain)
    shapes = (*query.shape[:3], keys.value.shape[3]), (*query.shape[:3], 1)
    if places.window:
        near_keys = _near_keys(places, query, keys)
        near = _near(places, starts, query, near_keys, loops)
        found = near.forward(query, near_keys)
        found = [loops.whole.moved(x, near.blocks, y) for x, y in zip(found, shapes)]
    else:
        # output and log-sums of no keys
        found = [
            loops.whole.filled(query, size(keys.value, 3), gain.dtype),
            loops.whole.filled(query, 1, gain.dtype, EMPTY),
        ]
    output, log_sums, far, *end, kept = loops.forward(
        query, *far_keys, r, sums, *found, shapes
    )
    least = ROUNDING * np.finfo(log_sums.dtype.as_numpy_dtype).eps
    some = far > tf.constant(EMPTY, far.dtype)
    counts = tf.logical_and(some, tf.exp(far - log_sums) > least)
    return output, log_sums, *end, kept, counts


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
    dfar = dlog_sums
    far_keys, loops = _far(kernel, places, starts, chunk_size, query, keys, gain)
    length = size(query, 1)
    if places.window:
        near_keys = _near_keys(places, query, keys)
        near = _near(places, starts, query, near_keys, loops)
        ends = output, log_sums, doutput, dlog_sums
        *gradients, totals = near.backward(query, near_keys, *ends)
        dfar -= near.blocks.join(totals, log_sums.shape)
        gradients[0] = loops.whole.moved(gradients[0], near.blocks, query.shape)
        if not (near.blocks.same(loops.whole) and places.aligned):
            pairs = zip(gradients[1:], near_keys)
            dkeys = [near.of_keys(x, like) for x, like in pairs]
            dkeys = [_placed(x, places.first, keys.key) for x in dkeys]
            # those of places after far keys
            further = [x[:, length:] for x in dkeys]
            gradients[1:] = [
                loops.whole.array_of(x[:, :length], gain.dtype) for x in dkeys
            ]
    else:
        gradients = [
            loops.whole.filled(x, size(x, 3), gain.dtype) for x in (query, *far_keys)
        ]
        further = [tf.zeros_like(x[:, length:]) for x in keys[:2]]
    dfar = tf.where(counts, dfar, tf.zeros_like(dfar))
    gradients, dsums, dtrained = loops.backward(
        query,
        *far_keys,
        output,
        log_sums,
        kept,
        doutput,
        dlog_sums,
        dsums,
        dfar,
        gradients,
    )
    dquery, *dkeys = gradients
    if not places.aligned:
        dkeys = [tf.concat(x, 1) for x in zip(dkeys, further)]
    return dquery, *dkeys, tf.reduce_sum(dfar, (0, 1)), dsums, *dtrained


def _near_keys(places, query, keys):
    keys = keys._replace(seen=mask_or_all(keys.seen, keys.key))
    length = places.before + size(query, 1)
    return keys.between(places.first, places.first + length)


def _near(places, starts, query, keys, far):
    """The loops of near keys, in the blocks of the loops of far ones if they can be."""
    reach = places.before or reach_within(places.window, query, None)
    numbers = None
    if starts is not None:
        numbers = tf.pad(segment_numbers(starts), [[0, 0], [places.before, 0]])
    options = reach, places.before, places.window, places.causal, numbers
    blocks = far.whole if isinstance(far.whole.tokens, int) else None
    return Local(options, query, keys, blocks)


def _far(kernel, places, starts, chunk_size, query, keys, gain):
    """Keys and values that the loops over far keys take, and these loops.

    Query i sees those up to the place i, `places.skipped` places later than they lie.
    """
    key, value, mask = (x if x is None else x[:, : size(query, 1)] for x in keys)
    options = mask, starts, places.skipped, places.window, not places.causal
    return (key, value), causal_far.Far(
        kernel, query, key, value, chunk_size, gain, *options
    )


def _placed(x, start, like, fill=0.0):
    """x from the place `start` on in a sequence as long as that of `like`."""
    after = size(like, 1) - start - size(x, 1)
    ends = [[0, 0], [start, after], [0, 0], [0, 0]]
    x = tf.pad(x, ends, constant_values=fill)
    return tf.ensure_shape(x, (None, like.shape[1], None, None))
