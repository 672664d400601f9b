"""One token after another, by the recurrent state and by a key-value cache.

A case is a dict: contender ("softmax", the same with jit_compile=True, or
"key-value cache"), mode ("graph" or "xla"), position, the number of tokens that came
before, batch, the number of sequences, and tokens, how many of each a run decodes, in
one compiled loop: each is the output for the one before.
"""

import keras
import tensorflow as tf

import keras_performer
from benchmarks import contenders
from benchmarks.contenders import keras_layers

start = keras_layers.start


def program(case):
    keras.utils.set_random_seed(0)
    xla = case["mode"] == "xla"
    if case["contender"] == "key-value cache":
        length = case["position"] + case["tokens"]
        decode_token, state = cached(case["position"], length, case["batch"], xla)
    else:
        jit_compile = case["contender"].endswith("jit_compile=True")
        decode_token, state = recurrent(case["position"], case["batch"], jit_compile)

    def decode(token, state):
        def step(i, token, state):
            return i + 1, *decode_token(i, token, state)

        def unfinished(i, *_):
            return i < case["tokens"]

        return tf.while_loop(unfinished, step, (0, token, state))[1]

    compiled = tf.function(decode, jit_compile=xla)
    token = tf.random.normal((case["batch"], 1, contenders.WIDTH))
    return (
        lambda: compiled.get_concrete_function(token, state),
        lambda: compiled(token, state).numpy(),
    )


def recurrent(position, batch, jit_compile):
    """`PerformerAttention`, from its state after `position` tokens."""
    layer = keras_performer.PerformerAttention(
        contenders.NUM_HEADS,
        contenders.KEY_DIM,
        causal=True,
        num_random_features=contenders.NUM_RANDOM_FEATURES,
        seed=0,
        jit_compile=jit_compile,
    )
    prefix = tf.random.normal((1, position, contenders.WIDTH))
    _, state = layer(prefix, return_state=True)
    # what the numbers are does not matter to speed
    state = tf.nest.map_structure(lambda x: tf.repeat(x, batch, axis=0), state)

    def decode_token(i, token, state):
        return layer(token, state=state, return_state=True)

    return decode_token, state


def cached(position, length, batch, xla):
    """Exact attention with a cache that is made for `length` tokens.

    The fastest of those tried in TensorFlow: heads before tokens, so that both products
    read the cache as it lies; a new token overwrites its row and copies nothing. Rows
    that are yet to come are masked, as a slice would copy the cache in graph mode. XLA
    copies it once, when a run begins.
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
        # TensorFlow's scatter would copy the cache for every token
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
