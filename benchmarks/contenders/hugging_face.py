"""Longformer of transformers 4.57, the last for TensorFlow, on TensorFlow 2.20."""

import numpy as np
import tensorflow as tf
import tf_keras
import transformers
from transformers.models.longformer import modeling_tf_longformer as longformer

from benchmarks.contenders import steps

# What its model makes of tokens before it calls the layer.
HIDDEN, GLOBAL = -10_000.0, 10_000.0
PARTS = ("query", "key", "value", "query_global", "key_global", "value_global")


def start(threads):
    return steps.start(threads, "transformers")


def program(case):
    tf.random.set_seed(0)
    return steps.of_side(case, attention)


def attention(case, arrays):
    """`Side` of its layer with the dense layer behind it, as others have inside."""
    sizes, options = case["sizes"], case["options"]
    config = transformers.LongformerConfig(
        hidden_size=sizes["width"],
        num_attention_heads=sizes["num_heads"],
        attention_window=[options["attention_window"]],
        attention_probs_dropout_prob=0.0,
    )
    layer = longformer.TFLongformerSelfAttention(config, layer_id=0)
    output = tf_keras.layers.Dense(sizes["width"])
    if arrays is None:
        times = tf.range(case["length"])[tf.newaxis]
        seen, is_global = times >= 0, times < case["num_global_tokens"]
    else:
        seen, is_global = tf.constant(arrays["seen"]), tf.constant(arrays["global"])
    # not a bool, which Keras makes a tensor, and AutoGraph branches of different shapes
    any_global = np.any(is_global)
    role = tf.where(is_global, GLOBAL, tf.where(seen, 0.0, HIDDEN))
    role = role[..., tf.newaxis, tf.newaxis]
    is_hidden = tf.logical_not(seen)

    def call(x):
        inputs = x, role, None, is_hidden, is_global, any_global
        return output(layer(inputs, training=True)[0])

    def weights():
        # without global tokens it has the further dense layers, and uses them not
        names = PARTS if any_global else PARTS[:3]
        parts = {name: getattr(layer, name) for name in names}
        return steps.of_dense({**parts, "attention_output": output})

    return steps.Side(call, weights)
