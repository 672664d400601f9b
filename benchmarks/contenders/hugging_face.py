"""Longformer of transformers 4.57, the last version for TensorFlow, on 2.20."""

import numpy as np
import tensorflow as tf
import tf_keras
import transformers
from transformers.models.longformer import modeling_tf_longformer as longformer

from benchmarks.contenders import steps

# Values by which the model marks hidden and global tokens for the layer.
HIDDEN, GLOBAL = -10_000.0, 10_000.0
PARTS = ("query", "key", "value", "query_global", "key_global", "value_global")


def start(threads):
    return steps.start(threads, "transformers")


def program(case):
    tf.random.set_seed(0)
    return steps.of_side(case, attention)


def attention(case, arrays):
    """Returns the `Side` of the layer and of the dense layer that others include."""
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
    # NumPy's: Keras makes a bool a tensor, and AutoGraph's branches differ in shape
    any_global = np.any(is_global)
    role = tf.where(is_global, GLOBAL, tf.where(seen, 0.0, HIDDEN))
    role = role[..., tf.newaxis, tf.newaxis]
    is_hidden = tf.logical_not(seen)

    def call(x):
        inputs = x, role, None, is_hidden, is_global, any_global
        return output(layer(inputs, training=True)[0])

    def weights():
        # without global tokens the layer does not use the last three dense layers
        names = PARTS if any_global else PARTS[:3]
        parts = {name: getattr(layer, name) for name in names}
        return steps.of_dense({**parts, "attention_output": output})

    return steps.Side(call, weights)
