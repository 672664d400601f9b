"""Kinds of language models, as arguments of `token_models.small_model`."""

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM
from keras_performer.layers import EmbeddingLayer, LocalAttention
from keras_performer.zoo import FourierMixing, SpatialGatingUnit, TokenMixing


@keras.saving.register_keras_serializable("tests")
class Pairs(EmbeddingLayer):
    """Embedding of a token and the token before it, which also goes to the head."""

    extra_dtypes = tf.float32

    def build(self, input_shape):
        self.table = self.add_weight(shape=(11, 11, 8), name="table")

    def empty_state(self, batch_size):
        return tf.zeros((batch_size, 1), tf.int32)

    def call(self, inputs, state):
        inputs = tf.cast(inputs, tf.int32)
        before = tf.concat([state, inputs[:, :-1]], 1)
        table = tf.convert_to_tensor(self.table)
        x = tf.gather(tf.reshape(table, (-1, 8)), 11 * before + inputs)
        return x, tf.cast(before, tf.float32), inputs[:, -1:]


@keras.saving.register_keras_serializable("tests")
class Shifted(keras.layers.Layer):
    """Head that adds to logits the scaled distance from the token before."""

    def build(self, input_shape):
        self.dense = keras.layers.Dense(11)
        self.dense.build(input_shape)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x, before):
        ids = tf.range(11, dtype=before.dtype)
        return self.dense(x) + self.scale * tf.abs(before[..., tf.newaxis] - ids)

    def next_token_logits(self, outputs):
        return -outputs

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], 11)


def pairs(**options):
    return PerformerLM(embedding=Pairs(), head=Shifted(), **options)


def large_kernels(model):
    """Gives earlier tokens more weight in convolutions than at first."""
    for index, block in enumerate(model.blocks):
        random = np.random.default_rng(index)
        kernel = block.convolution.kernel
        kernel.assign(random.standard_normal(kernel.shape))


def local(**options):
    return LocalAttention(2, 4, sliding_window=3, causal=True, **options)


CONVOLUTION = dict(conv_kernel_size=3, prepare=large_kernels)
GATING = SpatialGatingUnit(16, 6, causal=True)
# Models with a state, which can read a sequence in pieces.
CONTINUED = {
    "performer": {},
    "window and gate": dict(exact_window=4, forget_gate=True),
    "rotary grid": dict(position_embedding="rotary", position_shape=(8, 2)),
    "learned": dict(position_embedding="learned", exact_window=4),
    "unlimited": dict(position_embedding="rotary", max_length=None),
    "none": dict(attention="none"),
    "convolution": CONVOLUTION,
    "several": dict(attention=[local(rotary=True), "none", "performer"], num_layers=3),
    "layer": dict(
        attention=PerformerAttention(2, 3, value_dim=5, causal=True, qk_norm=True)
    ),
    "taylor": dict(feature_map="taylor", num_random_features="auto"),
    "float64": dict(dtype="float64", feature_map="relu"),
    "bfloat16": dict(dtype="mixed_bfloat16", feature_map="relu", **CONVOLUTION),
    "float16": dict(dtype="mixed_float16"),
}
KINDS = {
    # no float16, as Keras cannot load its scaling of losses before a step
    **{name: options for name, options in CONTINUED.items() if name != "float16"},
    "exact": dict(attention="exact"),
    "recomputed": dict(recompute="network"),
    "both sides": dict(causal=False, position_embedding="learned"),
    "Fourier": dict(attention=FourierMixing("ortho"), causal=False),
    "tokens": dict(attention=TokenMixing(16, 6), causal=False),
    "gating of both sides": dict(attention=SpatialGatingUnit(16, 6), causal=False),
    "gating": dict(attention=GATING),
    "gating and others": dict(attention=["performer", GATING, "none"], num_layers=3),
}
