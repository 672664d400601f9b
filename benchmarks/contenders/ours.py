"""Layers of this package, and exact attention of Keras."""

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks import contenders
from benchmarks.contenders import steps

FEATURES = contenders.NUM_RANDOM_FEATURES
SIZES = {"num_heads": contenders.NUM_HEADS, "key_dim": contenders.KEY_DIM}


def start(threads):
    return steps.start(threads, "keras", "keras_performer")


def program(case):
    keras.utils.set_random_seed(0)
    programs = {"layer": step, "decoding": decoding, "generate": generating}
    return programs[case["part"]](case)


def step(case):
    """Makes a training step of `PerformerAttention`, or of exact attention of Keras."""
    causal = case["form"] == "causal"
    x = np.random.default_rng(0).standard_normal((1, case["length"], contenders.WIDTH))
    if case["contender"] == "exact":
        exact = keras.layers.MultiHeadAttention(**SIZES)
        return steps.program(lambda x: exact(x, x, use_causal_mask=causal), x)
    layer = keras_performer.PerformerAttention(
        **SIZES,
        causal=causal,
        num_random_features=FEATURES,
        seed=0,
        jit_compile=False if case["contender"].endswith("=False") else "auto",
    )
    return steps.program(lambda x: layer(x, training=True), x)


def decoding(case):
    """Decodes tokens in one compiled loop; each output is the next input.

    The case has contender ("softmax" or "key-value cache"), position (the number of
    earlier tokens), batch, and tokens (the number that a run decodes in each sequence).
    """
    xla, position, batch = case["mode"] == "xla", case["position"], case["batch"]
    if case["contender"] == "key-value cache":
        decode_token, state = cached(position, position + case["tokens"], batch, xla)
    else:
        decode_token, state = recurrent(position, batch)

    def decode(token, state):
        def step(i, token, state):
            return i + 1, *decode_token(i, token, state)

        def unfinished(i, *_):
            return i < case["tokens"]

        return tf.while_loop(unfinished, step, (0, token, state))[1]

    compiled = tf.function(decode, jit_compile=xla)
    token = tf.random.normal((batch, 1, contenders.WIDTH))
    return lambda: compiled(token, state).numpy()


def recurrent(position, batch):
    """Makes `PerformerAttention` and its state after `position` tokens."""
    layer = keras_performer.PerformerAttention(
        **SIZES,
        causal=True,
        num_random_features=FEATURES,
        seed=0,
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

    return run
