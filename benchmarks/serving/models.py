"""Models to serve, and their signatures as a program of `turns`."""

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.contenders import steps
from keras_performer.layers import arguments

CONTENDERS = {
    "performer": "ours, state of sums",
    "key-value cache": "exact, cache",
}


# Weights are random, as speed does not depend on them.
SIZES = {
    "vocabulary_size": 256,
    "num_layers": 4,
    "num_heads": 4,
    "hidden_dim": 256,
    "num_random_features": 256,
}


def export(contender, longest, sizes, folder):
    """Exports a model with the signatures `serve`, `prefill` and `decode` to a folder.

    A cache has `longest` positions. Returns the bytes of the state of one session.
    """
    keras.utils.set_random_seed(0)
    options = {**sizes, "exact_window": None, "forget_gate": False}
    if contender != "performer":
        heads = sizes["num_heads"], sizes["hidden_dim"] // sizes["num_heads"]
        exact = ExactWithCache(*heads, cache_length=longest, rotary=True)
        options = {**sizes, "attention": exact}
        del options["num_random_features"]
    model = keras_performer.PerformerLM(max_length=longest, seed=0, **options)
    model.export(folder, verbose=False)
    state = tf.nest.flatten(model.get_initial_state(1))
    return sum(x.dtype.size * int(np.prod(x.shape)) for x in state)


@keras.saving.register_keras_serializable(package="benchmarks")
class ExactWithCache(keras_performer.layers.AttentionLayer):
    """Exact causal attention with a cache of keys and values of fixed length.

    In the cache heads come before positions, so that both products read it without a
    transpose. Each row of a batch has its own number of earlier tokens. A step attends
    to all positions with a mask, so `cache_length` should be the longest sequence.
    Masks of keys and grouped heads are not supported.
    """

    supports_state = True

    def __init__(self, num_heads, key_dim, *, cache_length, **kwargs):
        super().__init__(num_heads, key_dim, **{"causal": True, **kwargs})
        self.cache_length = arguments.positive_int("cache_length", cache_length)

    def empty_state(self, batch_size):
        rows = batch_size, self.num_heads, self.cache_length
        return {
            "key": tf.zeros((*rows, self.key_dim), self.compute_dtype),
            "value": tf.zeros((*rows, self.value_dim), self.compute_dtype),
            "length": tf.zeros((batch_size,), tf.int32),
        }

    def attend(self, query, key, value, visible, state=None, training=None):
        if state is None:  # the inputs are the whole sequence
            attended = keras_performer.ops.exact_attention(query, key, value, visible)
            return attended, self._filled(key, value)
        length = tf.shape(key)[1]
        places = state["length"][:, tf.newaxis] + tf.range(length)  # (B, T)
        keys = _put(state["key"], places, key)
        values = _put(state["value"], places, value)
        query = tf.transpose(query, (0, 2, 1, 3))
        logits = tf.matmul(query, keys, transpose_b=True) * self.key_dim**-0.5
        seen = tf.range(self.cache_length) <= places[:, :, tf.newaxis]
        logits = tf.where(seen[:, tf.newaxis], logits, logits.dtype.min)
        attended = tf.transpose(tf.matmul(tf.nn.softmax(logits), values), (0, 2, 1, 3))
        later = {"key": keys, "value": values, "length": state["length"] + length}
        return attended, later

    def _filled(self, key, value):
        batch, length = tf.unstack(tf.shape(key)[:2])
        left = ((0, 0), (0, 0), (0, self.cache_length - length), (0, 0))
        key, value = (tf.pad(tf.transpose(x, (0, 2, 1, 3)), left) for x in (key, value))
        # signatures need shapes that TensorFlow cannot infer
        shape = None, self.num_heads, self.cache_length
        return {
            "key": tf.ensure_shape(key, (*shape, self.key_dim)),
            "value": tf.ensure_shape(value, (*shape, self.value_dim)),
            "length": tf.fill((batch,), length),
        }

    def get_config(self):
        return {**super().get_config(), "cache_length": self.cache_length}


def _put(cache, places, new):
    """Returns the cache `(B, N, L, H)` with new `(B, T, N, H)` at places `(B, T)`."""
    batch, length, heads, _ = tf.unstack(tf.shape(new))
    shape = batch, length, heads
    indices = tf.stack(
        [
            tf.broadcast_to(tf.range(batch)[:, tf.newaxis, tf.newaxis], shape),
            tf.broadcast_to(tf.range(heads), shape),
            tf.broadcast_to(places[:, :, tf.newaxis], shape),
        ],
        axis=-1,
    )
    return tf.tensor_scatter_nd_update(cache, indices, new)


start = steps.start


def program(case):
    """Decodes the likeliest tokens of all sequences, one call of `decode` per step."""
    loaded = tf.saved_model.load(case["folder"])
    prefill, decode = (loaded.signatures[name] for name in ("prefill", "decode"))
    # all prompts are equal, as speed does not depend on the tokens
    prompt = prompt_of(case["prompt_length"], case["vocabulary_size"])
    state = dict(prefill(tokens=tf.constant([prompt])))
    state = {name: tf.repeat(x, case["batch"], axis=0) for name, x in state.items()}

    def run():
        after = dict(state)
        for _ in range(case["new_tokens"]):
            logits = after.pop("logits").numpy()
            tokens = logits.argmax(-1).astype("int32")[:, np.newaxis]
            after = dict(decode(tokens=tf.constant(tokens), **after))
        after["logits"].numpy()
        assert loaded  # keeps the weights alive

    return run


def prompt_of(length, vocabulary_size, seed=0):
    """Samples tokens, a list of ints."""
    random = np.random.default_rng(seed)
    return random.integers(vocabulary_size, size=length, dtype="int32").tolist()
