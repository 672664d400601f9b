"""Layers of this package, exact attention of Keras, and a layer that returns V."""

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks import contenders
from benchmarks.contenders import steps

FEATURES = contenders.NUM_RANDOM_FEATURES
SIZES = {"num_heads": contenders.NUM_HEADS, "key_dim": contenders.KEY_DIM}


def start(threads):
    versions = steps.start(threads)
    ours = {"keras_performer": keras_performer.__version__}
    return {**versions, "keras": keras.__version__, **ours}


def program(case):
    keras.utils.set_random_seed(0)
    if case.get("contender") == "matmul":
        x = tf.random.normal((contenders.MATMUL_SIZE, contenders.MATMUL_SIZE))
        return steps.program(tf.matmul, [x, x], {**case, "step": "forward"})
    if case["part"] == "decoding":
        return decoding(case)
    if case["part"] == "generate":
        return generating(case)
    shape = 1, case["length"], contenders.WIDTH
    x = tf.cast(np.random.default_rng(0).standard_normal(shape), case["dtype"])
    return steps.program(layer(case), [x], case)


def layer(case):
    dtype = "mixed_bfloat16" if case["dtype"] == "bfloat16" else "float32"
    causal = case["form"] == "causal"
    if case["contender"] == "exact":
        exact = keras.layers.MultiHeadAttention(**SIZES, dtype=dtype)
        return lambda x: exact(x, x, use_causal_mask=causal)
    if case["contender"] == "returns V":
        return ReturnsValue(**SIZES, dtype=dtype)
    # as in "softmax, jit_compile=False"
    feature_map, given, value = case["contender"].partition(", jit_compile=")
    ours = keras_performer.PerformerAttention(
        **SIZES,
        dtype=dtype,
        causal=causal,
        feature_map=feature_map,
        num_random_features=FEATURES,
        seed=0,
        jit_compile=value == "True" if given else "auto",
    )
    # as Keras' `fit` and `predict` call it
    return lambda x: ours(x, training=case["step"] == "training")


class ReturnsValue(keras_performer.PerformerAttention):
    """X(OPT) of the paper: only the projections; attention returns V.

    Adding queries and keys with weight 0 makes their projections part of the graph.
    """

    def call(self, query, value=None, key=None):
        dense = self.query_dense, self.key_dense, self.value_dense
        q, k, v = (each(query) for each in dense)
        return self.output_dense(v + 0 * (q + k))


def decoding(case):
    """Decodes tokens in one compiled loop; each output is the next input.

    The case has contender ("softmax", also with jit_compile=True, or "key-value
    cache"), position (the number of earlier tokens), batch, and tokens (the number that
    a run decodes in each sequence).
    """
    xla, position, batch = case["mode"] == "xla", case["position"], case["batch"]
    if case["contender"] == "key-value cache":
        decode_token, state = cached(position, position + case["tokens"], batch, xla)
    else:
        jit_compile = case["contender"].endswith("jit_compile=True")
        decode_token, state = recurrent(position, batch, jit_compile)

    def decode(token, state):
        def step(i, token, state):
            return i + 1, *decode_token(i, token, state)

        def unfinished(i, *_):
            return i < case["tokens"]

        return tf.while_loop(unfinished, step, (0, token, state))[1]

    compiled = tf.function(decode, jit_compile=xla)
    token = tf.random.normal((batch, 1, contenders.WIDTH))
    return (
        lambda: compiled.get_concrete_function(token, state),
        lambda: compiled(token, state).numpy(),
    )


def recurrent(position, batch, jit_compile):
    """Makes `PerformerAttention` and its state after `position` tokens."""
    layer = keras_performer.PerformerAttention(
        **SIZES,
        causal=True,
        num_random_features=FEATURES,
        seed=0,
        jit_compile=jit_compile,
    )
    prefix = tf.random.normal((1, position, contenders.WIDTH))
    _, state = layer(prefix, return_state=True)
    # speed does not depend on the numbers
    state = tf.nest.map_structure(lambda x: tf.repeat(x, batch, axis=0), state)

    def decode_token(i, token, state):
        return layer(token, state=state, return_state=True)

    return decode_token, state


def cached(position, length, batch, xla):
    """Makes exact attention with a cache for `length` tokens.

    This was the fastest variant tried in TensorFlow. Heads come before tokens, so that
    both products read the cache without a transpose. A new token overwrites its row and
    copies nothing. Later rows are masked, since a slice would copy the cache in graph
    mode. XLA copies it once, when a run begins.
    """
    heads, head_dim = contenders.NUM_HEADS, contenders.KEY_DIM
    width = contenders.WIDTH
    cache_shape = (batch * heads * length, head_dim)
    state = tuple(tf.random.normal(cache_shape) for _ in ("keys", "values"))
    kernels = tf.random.normal((4, width, width), stddev=width**-0.5)
    query_kernel, key_kernel, value_kernel, output_kernel = tf.unstack(kernels)

    def split(token, kernel):
        return tf.reshape(token[:, 0] @ kernel, (batch * heads, head_dim))

    def put(cache, rows, new):
        if xla:
            return tf.tensor_scatter_nd_update(cache, rows[:, tf.newaxis], new)
        # a scatter in TensorFlow would copy the cache for every token
        return tf.raw_ops.InplaceUpdate(x=cache, i=rows, v=new)

    def by_heads(cache):
        return tf.reshape(cache, (batch * heads, length, head_dim))

    def decode_token(i, token, state):
        now = position + i
        rows = tf.range(batch * heads) * length + now
        keys = put(state[0], rows, split(token, key_kernel))
        values = put(state[1], rows, split(token, value_kernel))
        query = split(token, query_kernel)[:, tf.newaxis] * head_dim**-0.5
        scores = tf.matmul(query, by_heads(keys), transpose_b=True)
        scores = tf.where(tf.range(length) <= now, scores, -1e9)
        attended = tf.matmul(tf.nn.softmax(scores), by_heads(values))
        output = tf.reshape(attended, (batch, width)) @ output_kernel
        return output[:, tf.newaxis], (keys, values)

    return decode_token, state


def generating(case):
    """Makes `generate` with a `PerformerLM`."""
    length = case["prompt_length"] + case["new_tokens"]
    model = keras_performer.PerformerLM(
        max_length=length,
        num_random_features=FEATURES,
        exact_window=None,
        forget_gate=False,
        seed=0,
        **case["sizes"],
    )
    random = np.random.default_rng(0)
    shape = case["batch"], case["prompt_length"]
    prompt = random.integers(model.vocabulary_size, size=shape)

    def run():
        tokens = keras_performer.generate(
            model, prompt, length, temperature=0, verbose=0
        )
        assert tokens.shape == (case["batch"], length)

    return lambda: None, run
