"""This package, Keras' exact layer, and the layer whose attention returns V."""

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks import contenders, tensorflow_programs
from keras_performer import feature_maps, ops


def start(threads):
    versions = tensorflow_programs.start(threads)
    return {
        **versions,
        "keras": keras.__version__,
        "keras_performer": keras_performer.__version__,
    }


def program(case):
    keras.utils.set_random_seed(0)
    if case["contender"] == "matmul":
        x = tf.random.normal((contenders.MATMUL_SIZE, contenders.MATMUL_SIZE))
        forward = {**case, "step": "forward"}
        return tensorflow_programs.program(tf.matmul, [x, x], forward)
    make = attention if case["part"] == "attention" else layer
    return tensorflow_programs.program(make(case), inputs(case), case)


def inputs(case):
    random = np.random.default_rng(0)
    length, dtype = case["length"], case["dtype"]
    if case["part"] == "layer":
        x = random.standard_normal((1, length, contenders.WIDTH))
        return [tf.cast(x, dtype)]
    heads = (3, 1, length, contenders.NUM_HEADS, contenders.KEY_DIM)
    return [tf.cast(x, dtype) for x in random.standard_normal(heads)]


def layer(case):
    policy = "mixed_bfloat16" if case["dtype"] == "bfloat16" else "float32"
    sizes = {
        "num_heads": contenders.NUM_HEADS,
        "key_dim": contenders.KEY_DIM,
        "dtype": policy,
    }
    causal = case["form"] == "causal"
    if case["contender"] == "exact":
        exact = keras.layers.MultiHeadAttention(**sizes)
        return lambda x: exact(x, x, use_causal_mask=causal)
    if case["contender"] == "returns V":
        return ReturnsValue(**sizes)
    ours = keras_performer.PerformerAttention(
        **sizes,
        causal=causal,
        feature_map=feature_map(case),
        num_random_features=contenders.NUM_RANDOM_FEATURES,
        seed=0,
        jit_compile=jit_compile(case),
    )
    # as Keras' `fit` and `predict` call it
    return lambda x: ours(x, training=case["step"] == "training")


class ReturnsValue(keras_performer.PerformerAttention):
    """X(OPT) of the paper: the projections alone, with attention that returns V.

    Queries and keys are added in with weight 0, so that they are computed too.
    """

    def call(self, query, value=None, key=None):
        q, k, v = (
            dense(query)
            for dense in (self.query_dense, self.key_dense, self.value_dense)
        )
        return self.output_dense(v + 0 * (q + k))


def feature_map(case):
    """The name of ours, without an option: "softmax, jit_compile=False"."""
    return case["contender"].partition(",")[0]


def jit_compile(case):
    """The layer's argument, from that option."""
    _, given, value = case["contender"].partition(", jit_compile=")
    return value == "True" if given else "auto"


def attention(case):
    features = feature_maps.get(feature_map(case))
    sizes = contenders.NUM_RANDOM_FEATURES, contenders.KEY_DIM
    kernel = features.kernel(features.draw(*sizes, (0, 0)))
    compiles = jit_compile(case) is True

    def bidirectional(q, k, v):
        return ops.bidirectional_attention(q, k, v, kernel, jit_compile=compiles)

    def causal(q, k, v):
        return ops.causal_attention(q, k, v, kernel, jit_compile=compiles)[0]

    return causal if case["form"] == "causal" else bidirectional
