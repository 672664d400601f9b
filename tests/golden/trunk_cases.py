"""Linear attention in all its forms: what one algorithm for them must compute as well.

Causal or bidirectional, with an exact window or without, masked or packed, in pieces:
outputs, and gradients of inputs, of the gain and of the kernel's parameters. Of states
they record what later queries read: how a state holds it is no promise.
"""

import functools

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.linear_attention import linear_attention
from tests.golden.numbers import normal

# Two chunks of 64 tokens and a part of one; windows are shorter and longer than one.
B, T, N, H, V, M = 2, 160, 4, 8, 5, 16
# Segments of one token, within a chunk and of several; one starts with a chunk.
FIRSTS = (0, 1, 20, 64, 159), (0, 70, 75)
# Pieces that a state takes from one to the next: several of one token.
PIECES = 0, 66, 67, 68, 128, 159, 160


def _hyperbolic(half):
    matrix = tf.concat([half, -half], 0)
    return ops.ExponentialKernel(matrix, hyperbolic=True, trainable=True)


def _weighted(matrix, log_weights):
    return ops.ExponentialKernel(matrix, log_weights=log_weights, trainable=True)


def _gelu(matrix):
    return ops.ActivationKernel(matrix, tf.nn.gelu, epsilon=0.3, trainable=True)


# Key-value heads; the function that makes a kernel, and the shapes of its parameters.
KERNELS = {
    "weighted": (4, _weighted, [(M, H), (M,)]),
    "grouped": (2, _hyperbolic, [(M // 2, H)]),
    "taylor": (2, ops.TaylorKernel, []),
    "gelu": (2, _gelu, [(M, H)]),
}


def _key_mask():
    """The first keys hidden and some further ones."""
    places = np.arange(T)
    return np.stack([(places >= 70) & (places % 5 > 0), places % 7 > 2])


def _starts():
    starts = np.zeros((B, T), bool)
    for row, firsts in zip(starts, FIRSTS):
        row[list(firsts)] = True
    return starts


MASKED = {
    "plain": lambda: (None, None),
    "masked": lambda: (_key_mask(), None),
    "packed": lambda: (None, _starts()),
}


def _visible(which, causal, piece=slice(None)):
    """The `Visibility` of a piece."""
    parts = (x if x is None else x[:, piece] for x in MASKED[which]())
    key_mask, starts = (x if x is None else tf.constant(x) for x in parts)
    return ops.Visibility(key_mask, causal, starts=starts)


def _inputs(kernel, dtype):
    """Query, key, value, gain, and the parameters of the kernel."""
    heads, _, shapes = KERNELS[kernel]
    keys = {"query": (B, T, N, H), "key": (B, T, heads, H), "value": (B, T, heads, V)}
    given = {**keys, "gain": (N,)}
    given.update((f"parameter {i}", shape) for i, shape in enumerate(shapes))
    return {name: tf.constant(normal(name, s, 1.0, dtype)) for name, s in given.items()}


def _numbers(function, inputs):
    """The output, and the gradients of inputs that move it."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = function(**inputs)
        weights = normal("output", output.shape, 1.0, output.dtype.name)
        loss = tf.reduce_sum(output * weights)
    gradients = tape.gradient(loss, inputs)
    gradients = {f"gradient {k}": x for k, x in gradients.items() if x is not None}
    return {"output": output, **gradients}


def _numbers_of(kernel, dtype, attend):
    """Those of a function of query, key, value, gain, kernel."""
    make = KERNELS[kernel][1]

    def function(query, key, value, gain, **parameters):
        return attend(query, key, value, gain, make(*parameters.values()))

    return _numbers(function, _inputs(kernel, dtype))


def whole(kernel, which, causal, window, dtype):
    def attend(query, key, value, gain, kernel):
        given = query, key, value, kernel, _visible(which, causal), window, gain
        return linear_attention(*given)[0]

    return _numbers_of(kernel, dtype, attend)


def in_pieces(kernel, which, window, dtype):
    def attend(query, key, value, gain, kernel):
        state, outputs = None, []
        for piece in map(slice, PIECES, PIECES[1:]):
            given = (x[:, piece] for x in (query, key, value))
            visible = _visible(which, True, piece)
            output, state = linear_attention(
                *given, kernel, visible, window, gain, state
            )
            outputs.append(output)
        return tf.concat(outputs, 1)

    return _numbers_of(kernel, dtype, attend)


def merged(kernel, window, dtype):
    """The last tokens read a state that is merged of three pieces'."""
    cuts = 0, 66, 70, 140, 160

    def attend(query, key, value, gain, kernel):
        def run(start, stop, state=None):
            piece = slice(start, stop)
            given = (x[:, piece] for x in (query, key, value))
            visible = _visible("masked", True, piece)
            options = visible, window, gain, state
            return linear_attention(*given, kernel, *options)

        first, second, third = (run(*ends)[1] for ends in zip(cuts[:3], cuts[1:]))
        lengths = [stop - start for start, stop in zip(cuts, cuts[1:])]
        state = ops.merge_states(kernel, second, third, lengths[2])
        state = ops.merge_states(kernel, first, state, sum(lengths[1:3]))
        return run(*cuts[3:], state)[0]

    return _numbers_of(kernel, dtype, attend)


def absorbed(kernel, dtype):
    """All queries read what two pieces of keys left."""

    def attend(query, key, value, gain, kernel):
        sizes = B, key.shape[2], kernel.num_features(H), V
        state = ops.initial_state(*sizes, dtype)
        for piece in (slice(0, 90), slice(90, None)):
            given = key[:, piece], value[:, piece], kernel
            mask = _visible("masked", False, piece)
            state = ops.absorb_keys(*given, mask, state)
        return ops.answer_queries(query, kernel, state)

    return _numbers_of(kernel, dtype, attend)


def joined(kernel, window, dtype):
    """Earlier and later keys, each in two pieces; of the parts the log-sums too."""
    pieces = slice(0, 90), slice(90, T)

    def attend(query, key, value, gain, kernel):
        def states():
            sizes = B, key.shape[2], kernel.num_features(H), V
            state = ops.initial_state(*sizes, dtype)
            return ops.with_recent_keys(state, window, H, dtype)

        def one_side(given, mask, own_key):
            state, found = states(), []
            for piece in pieces:
                cut = (x[:, piece] for x in given)
                options = kernel, window, gain, mask[:, piece], state
                *part, state = ops.attend_to_earlier(*cut, *options, own_key=own_key)
                found.append(part)
            return [tf.concat(x, 1) for x in zip(*found)]

        given, mask = (query, key, value), tf.constant(_key_mask())
        earlier = one_side(given, mask, True)
        turned = [tf.reverse(x, [1]) for x in given]
        later = one_side(turned, tf.reverse(mask, [1]), False)
        later = [tf.reverse(x, [1]) for x in later]
        output, log_sums = ops.join_parts(earlier, later)
        return tf.concat([output, log_sums], -1)

    return _numbers_of(kernel, dtype, attend)


def local(which, causal, window, dtype):
    def attend(query, key, value, gain, kernel):
        visible = _visible(which, causal)
        return ops.local_attention(query, key, value, window, visible)[0]

    return _numbers_of("grouped", dtype, attend)


def local_in_pieces(which, window, dtype):
    def attend(query, key, value, gain, kernel):
        state, outputs = None, []
        for piece in map(slice, PIECES, PIECES[1:]):
            given = (x[:, piece] for x in (query, key, value))
            visible = _visible(which, True, piece)
            output, state = ops.local_attention(*given, window, visible, state=state)
            outputs.append(output)
        return tf.concat(outputs, 1)

    return _numbers_of("grouped", dtype, attend)


# Kernel, window and what is visible, of whole sequences and of pieces.
CAUSAL = [
    ("weighted", None, "masked"),
    ("weighted", 40, "plain"),
    ("grouped", None, "packed"),
    ("grouped", 3, "masked"),
    ("grouped", 100, "packed"),
    ("taylor", None, "plain"),
    ("taylor", 100, "masked"),
    ("gelu", None, "packed"),
]
BIDIRECTIONAL = [
    ("weighted", None, "packed"),
    ("weighted", 100, "masked"),
    ("grouped", None, "plain"),
    ("grouped", 40, "plain"),
    ("grouped", 3, "packed"),
    ("taylor", 3, "plain"),
    ("taylor", 40, "masked"),
    ("gelu", None, "masked"),
]
IN_PIECES = [
    ("grouped", None, "packed"),
    ("grouped", 100, "masked"),
    ("taylor", None, "masked"),
    ("taylor", 3, "packed"),
]
MERGED = ("grouped", 100), ("taylor", None), ("gelu", None)
JOINED = ("grouped", 40), ("taylor", 3)
LOCAL = (True, 3, "masked"), (True, 100, "packed"), (False, 100, "plain")


def _cases():
    for causal, forms in ((True, CAUSAL), (False, BIDIRECTIONAL)):
        side = "causal" if causal else "bidirectional"
        for kernel, window, which in forms:
            name = f"{side} {kernel} window {window} {which}"
            yield name, (whole, kernel, which, causal, window)
    for kernel, window, which in IN_PIECES:
        name = f"pieces {kernel} window {window} {which}"
        yield name, (in_pieces, kernel, which, window)
    for kernel, window in MERGED:
        yield f"merged {kernel} window {window}", (merged, kernel, window)
    for kernel in ("grouped", "gelu"):
        yield f"absorbed {kernel}", (absorbed, kernel)
    for kernel, window in JOINED:
        yield f"joined {kernel} window {window}", (joined, kernel, window)
    for causal, window, which in LOCAL:
        side = "causal" if causal else "bidirectional"
        name = f"local {side} window {window} {which}"
        yield name, (local, which, causal, window)
    for which, window in (("masked", 3), ("packed", 100)):
        name = f"local pieces window {window} {which}"
        yield name, (local_in_pieces, which, window)


# float32 is compared with the twins in float64, in `tests/ops/test_trunk.py`
CASES = {
    f"trunk {name} float64": functools.partial(*call, "float64")
    for name, call in _cases()
}
