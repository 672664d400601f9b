"""Keras' attention layers, and our layers with the same results and weights."""

import keras
import tensorflow as tf

from keras_performer import PerformerAttention, ops
from keras_performer.layers import ExactAttention
from tests.layers.inputs import normal


@keras.saving.register_keras_serializable(package="tests")
class WithExactWeights(PerformerAttention):
    """`PerformerAttention` with exact weights instead of estimates."""

    def attend(self, query, key, value, visible, state=None, training=None):
        return ops.exact_attention(query, key, value, visible), None

    def scores(self, query, key, visible):
        return ops.exact_scores(query, key, visible)


def multi_head(kind, num_heads=3, key_dim=4, **options):
    """Returns a layer of kind "keras", "exact" or "performer", with nonzero biases."""
    options.setdefault(
        "bias_initializer", keras.initializers.RandomNormal(stddev=0.5, seed=6)
    )
    if kind == "keras":
        return keras.layers.MultiHeadAttention(num_heads, key_dim, **options)
    if kind == "exact":
        return ExactAttention(num_heads, key_dim, **options)
    return WithExactWeights(num_heads, key_dim, num_random_features=6, **options)


def grouped_query(
    kind, head_dim=4, num_query_heads=6, num_key_value_heads=2, **options
):
    """Returns layers as `multi_head`, but like `keras.layers.GroupQueryAttention`."""
    if kind == "keras":
        options.setdefault(
            "bias_initializer", keras.initializers.RandomNormal(stddev=0.5, seed=6)
        )
        heads = num_query_heads, num_key_value_heads
        return keras.layers.GroupQueryAttention(head_dim, *heads, **options)
    options["num_key_value_heads"] = num_key_value_heads
    return multi_head(kind, num_query_heads, head_dim, **options)


def pair(make, kind, shapes, **options):
    """Returns Keras' layer and a layer of `kind`, built, with the same weights.

    Args:
        make: `multi_head` or `grouped_query`.
        kind: "exact" or "performer".
        shapes: shapes of query, value and key, or only of the first one or two.
        **options: arguments of both layers.
    """
    expected, layer = make("keras", **options), make(kind, **options)
    expected.build(shapes[0], *(shapes[1:] or shapes[:1]))
    layer.build(*shapes)
    copy_weights(layer, expected)
    return expected, layer


def copy_weights(layer, other):
    """Gives a layer the dense weights of another; random features stay."""
    weights = other.get_weights()[: len(layer.trainable_weights)]
    layer.set_weights(weights + layer.get_weights()[len(weights) :])


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
