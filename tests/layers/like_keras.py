"""Keras' attention layers, and our layers with the same weights."""

import functools

import keras
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention
from tests.layers.inputs import normal

KINDS = {
    "keras": keras.layers.MultiHeadAttention,
    "exact": ExactAttention,
    "performer": functools.partial(PerformerAttention, num_random_features=6),
}


def multi_head(kind, num_heads=3, key_dim=4, **options):
    """Returns a layer of one of `KINDS`, with nonzero biases."""
    bias = keras.initializers.RandomNormal(stddev=0.5, seed=6)
    return KINDS[kind](num_heads, key_dim, **{"bias_initializer": bias, **options})


def grouped_query(
    kind, head_dim=4, num_query_heads=6, num_key_value_heads=2, **options
):
    """Returns layers as `multi_head`, but like `keras.layers.GroupQueryAttention`."""
    if kind == "keras":
        bias = keras.initializers.RandomNormal(stddev=0.5, seed=6)
        heads = num_query_heads, num_key_value_heads
        options = {"bias_initializer": bias, **options}
        return keras.layers.GroupQueryAttention(head_dim, *heads, **options)
    options["num_key_value_heads"] = num_key_value_heads
    return multi_head(kind, num_query_heads, head_dim, **options)


def pair(make, shapes, **options):
    """Returns Keras' layer and ours of kind "exact", built, with the same weights.

    Args:
        make: `multi_head` or `grouped_query`.
        shapes: shapes of query, value and key, or only of the first one or two.
        **options: arguments of both layers.
    """
    expected, layer = make("keras", **options), make("exact", **options)
    expected.build(shapes[0], *(shapes[1:] or shapes[:1]))
    layer.build(*shapes)
    layer.set_weights(expected.get_weights())
    return expected, layer


def results(layer, inputs, **call):
    """Returns output and scores of a call, and all gradients of a sum over both.

    Args:
        layer: a built attention layer.
        inputs: list of arrays: query, value and key, or fewer.
        **call: further arguments of the call.

    Returns:
        Dict of tensors; gradients of weights have the weight's name in the layer.
    """
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    weights = [weight.value for weight in layer.trainable_weights]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output, scores = layer(*inputs, return_attention_scores=True, **call)
        plain = layer(*inputs, **call)
        loss = sum(
            tf.reduce_sum(x * tf.cast(normal(x.shape, seed), x.dtype))
            for seed, x in enumerate((output, scores, plain))
        )
    gradients = tape.gradient(loss, [*inputs, *weights])
    names = [f"d input {i}" for i in range(len(inputs))]
    names += [weight.path.split("/", 1)[1] for weight in layer.trainable_weights]
    assert len(set(names)) == len(gradients)
    return {
        "output": output,
        "scores": scores,
        "plain output": plain,
        **dict(zip(names, gradients)),
    }
