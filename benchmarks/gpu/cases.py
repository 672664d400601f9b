"""Cases for the GPU: the numbers of every layer, and the times of some layers."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from benchmarks.long_range import models
from keras_performer.ops.shapes import sum_dtype

# A JAX layer, made by `run.py`.
FUSED = "exact, fused"
# Rows not compared: no attention, and rows that differ only in gains or feature number.
LEFT_OUT = models.WITHOUT, models.GAINS, models.HIGH_GAIN, models.TWO_FEATURES
# With the block sizes of CPUs: several blocks of several chunks, the last one padded.
SMALL = {"num_heads": 2, "key_dim": 16, "batch": 1, "length": 600, "window": 32}
# The timed layer has the sizes of the paper's regular model.
SIZES = {"num_heads": 8, "key_dim": 64, "window": 64}
# Batch sizes and lengths: with the same number of tokens, then with more, and with few.
ALL = (64, 1024), (16, 4096), (4, 16_384), (1, 65_536), (1, 262_144), (1, 4096)
SOME = (16, 4096), (1, 65_536)
# Sizes for rows whose memory grows with the square of the length.
SHORT = (64, 1024), (16, 4096), (4, 16_384), (1, 4096)
MEASURED = {
    "Performer": ALL,
    models.PERFORMER: SOME,
    models.WINDOW: SOME,
    models.EXACT: SHORT,
    FUSED: ALL,
}
HALF = ("mixed_bfloat16", "default")
# Factors of float32 products: not rounded, and rounded as TensorFlow does by default.
SINGLE = (("float32", "full"), ("float32", "default"))


def numbers():
    compared = [row for row in models.MODELS if row not in LEFT_OUT]
    for precision in (SINGLE[0], HALF, SINGLE[1]):
        for row, causal in itertools.product(compared, (True, False)):
            if not (causal and row in models.NOT_CAUSAL):
                of = case("numbers", row, causal, *precision, **SMALL)
                yield {**of, "blocks": "CPU"}


def times():
    """Yields training steps; the last ones are in float32, or have blocks of a CPU."""
    for (row, sizes), causal in itertools.product(MEASURED.items(), (True, False)):
        for batch, length in sizes:
            of = {**SIZES, "batch": batch, "length": length}
            yield case("layer", row, causal, *HALF, **of)
    for (batch, length), causal in itertools.product(SOME, (True, False)):
        of = {**SIZES, "batch": batch, "length": length}
        yield {**case("layer", "Performer", causal, *HALF, **of), "blocks": "CPU"}
        for precision in SINGLE:
            yield case("layer", "Performer", causal, *precision, **of)


KINDS = {"numbers": numbers, "layer": times}


def case(kind, row, causal, policy, precision, **sizes):
    form = "causal" if causal else "both sides"
    named = {"kind": kind, "row": row, "form": form, "blocks": "GPU"}
    return {**named, "policy": policy, "precision": precision, **sizes}


def program(case):
    """Returns a training step, its input, and the expected results or `None`.

    The step is a function of x that captures variables. If the values of x do not
    matter, x is a `tf.TensorSpec`.
    """
    keras.utils.set_random_seed(0)
    layer = layer_of(case)
    width = case["num_heads"] * case["key_dim"]
    shape = case["batch"], case["length"], width
    if case["kind"] == "layer":
        layer(tf.zeros((1, 8, width)))
        dtype = "float32" if case["policy"] == "float32" else "bfloat16"
        return step_of(layer), tf.TensorSpec(shape, dtype), None
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    layer(x[:1])
    return step_of(layer, with_output=True), x, expected(case, layer, x)


def layer_of(case):
    if case["kind"] == "layer" and case["row"] == models.EXACT:
        # the layer that a user of Keras would take
        return KerasAttention(case)
    names = "row", "length", "window", "num_heads", "key_dim"
    options = [case[name] for name in names]
    return models.attention_of(*options, causal=case["form"] == "causal")


class KerasAttention(keras.layers.Layer):
    """Exact self-attention of Keras with one input, like the other layers."""

    def __init__(self, case):
        super().__init__()
        sizes = case["num_heads"], case["key_dim"]
        self.attention = keras.layers.MultiHeadAttention(*sizes)
        self.is_causal = case["form"] == "causal"

    def call(self, x, training=None):
        return self.attention(x, x, use_causal_mask=self.is_causal, training=training)


def step_of(layer, with_output=False):
    """Returns a function of x: (the output and) gradients of x and of all weights."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, training=True)
            loss = tf.reduce_mean(tf.square(tf.cast(output, sum_dtype(output.dtype))))
        weights = [weight.value for weight in layer.trainable_weights]
        gradients = tape.gradient(loss, [x, *weights])
        return [output, *gradients] if with_output else gradients

    return step


def expected(case, layer, x):
    """Returns the layer's output and gradients with the same weights in float64."""
    keras.config.set_dtype_policy("float64")
    double = layer_of(case)
    keras.config.set_dtype_policy(case["policy"])
    double(x[:1])
    double.set_weights(layer.get_weights())
    return step_of(double, with_output=True)(tf.cast(x, "float64"))
