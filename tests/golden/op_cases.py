"""The functions of `keras_performer.ops`, and what feature maps draw."""

import functools

import tensorflow as tf

from keras_performer import feature_maps, ops
from tests.golden.numbers import normal, projection, state_arrays

# Each axis has its own prime size: batch, length, heads of queries and keys, sizes.
B, T, S, N, K, H, V, M = 2, 11, 13, 6, 3, 5, 7, 10


def _qkv(causal=False, std=1.0, dtype="float32"):
    keys = T if causal else S
    return (
        tf.constant(normal("query", (B, T, N, H), std, dtype)),
        tf.constant(normal("key", (B, keys, K, H), std, dtype)),
        tf.constant(normal("value", (B, keys, K, V), 1.0, dtype)),
    )


def _mask(length):
    return tf.constant(normal("mask", (B, length)) > -0.5)


def _kernel(feature_map):
    feature_map = feature_maps.get(feature_map)
    hyperbolic = getattr(feature_map, "hyperbolic", False)
    matrix = projection("projection_matrix", (M, H), hyperbolic)
    return feature_map.kernel(tf.constant(matrix))


def _weighted_kernel():
    """Features whose rows come from another density than the kernel's."""
    matrix = tf.constant(projection("projection_matrix", (M, H)))
    return ops.ExponentialKernel(matrix, log_weights=normal("log_weights", (M,)))


def _with_gradients(attend, *inputs):
    """What `attend` returns for query, key and value (or some of them), by name."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output, state = attend(*inputs)
        loss = tf.reduce_sum(output * normal("output", output.shape))
        if state is not None:
            # the sums as well: the running maximum only scales them
            running_max, sums = state_arrays(state)
            loss += tf.reduce_sum(sums * normal("sums", sums.shape))
    gradients = tape.gradient(loss, inputs)
    numbers = {"output": output}
    numbers.update((f"gradient {i}", g) for i, g in enumerate(gradients))
    if state is not None:
        numbers.update({"running_max": running_max, "sums": sums})
    return numbers


def bidirectional(kernel):
    def attend(query, key, value):
        mask = _mask(S)
        return ops.bidirectional_attention(query, key, value, kernel(), mask), None

    return _with_gradients(attend, *_qkv())


def causal(kernel, chunk_size=None):
    def attend(query, key, value):
        return ops.causal_attention(
            query, key, value, kernel(), _mask(T), chunk_size=chunk_size
        )

    return _with_gradients(attend, *_qkv(causal=True))


def causal_after_a_state(kernel):
    """Continues from what other keys left; the state gets gradients, too."""
    _, key, value = _qkv()
    start = ops.initial_state(B, K, M, V)
    before = ops.absorb_keys(key, value, kernel(), key_mask=None, state=start)
    running_max, sums = state_arrays(before)

    def attend(query, key, value, sums):
        state = tf.nest.pack_sequence_as(before, [running_max, sums])
        return ops.causal_attention(query, key, value, kernel(), state=state)

    return _with_gradients(attend, *_qkv(causal=True), sums)


def two_passes(kernel):
    """Keys in two pieces, then queries."""

    def attend(query, key, value):
        state, mask = ops.initial_state(B, K, M, V), _mask(S)
        for piece in (slice(0, 5), slice(5, None)):
            state = ops.absorb_keys(
                *(key[:, piece], value[:, piece], kernel()),
                key_mask=mask[:, piece],
                state=state,
            )
        return ops.answer_queries(query, kernel(), state), state

    return _with_gradients(attend, *_qkv())


def scores(kernel):
    query, key, _ = _qkv(causal=True)
    return {
        "all": ops.attention_scores(query, key, kernel(), _mask(T)),
        "causal": ops.attention_scores(query, key, kernel(), causal=True),
    }


def draws():
    """The random features of each map, three draws, with a rest of a block."""
    numbers = {}
    for hyperbolic in (False, True):
        for regularized in (False, True):
            for orthogonal in (False, True):
                map_ = feature_maps.SoftmaxFeatures(hyperbolic, regularized, orthogonal)
                words = ("hyperbolic", "regularized", "orthogonal")
                name = " ".join(w for w in words if getattr(map_, w)) or "plain"
                for redraw in range(3):
                    matrix = map_.draw(6, 4, tf.constant([3, redraw]))
                    numbers[f"{name} {redraw}"] = matrix
    numbers["relu"] = feature_maps.get("relu").draw(5, 3, tf.constant([1, 2]))
    return numbers


CASES = {"draws": draws}
for _name in ("softmax", "relu"):
    _make = functools.partial(_kernel, _name)
    CASES[f"ops bidirectional {_name}"] = functools.partial(bidirectional, _make)
    CASES[f"ops causal {_name}"] = functools.partial(causal, _make, chunk_size=4)
CASES |= {
    "ops two passes favor+": functools.partial(
        two_passes, functools.partial(_kernel, "favor+")
    ),
    "ops causal after a state": functools.partial(
        causal_after_a_state, functools.partial(_kernel, "softmax")
    ),
    "ops weighted features, causal": functools.partial(causal, _weighted_kernel),
    "ops scores": functools.partial(scores, functools.partial(_kernel, "softmax")),
}
