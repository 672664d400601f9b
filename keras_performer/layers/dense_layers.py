"""The dense layers of an attention layer, and the options that it hands to each."""

import functools

import keras

from keras_performer.layers.heads_dense import heads_dense

_NAMES = (
    "kernel_initializer",
    "bias_initializer",
    "kernel_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "bias_constraint",
)


class DenseNames:
    """What `keras.layers.MultiHeadAttention` calls its dense layers."""

    @property
    def query_dense(self):
        return self._query_dense

    @property
    def key_dense(self):
        return self._key_dense

    @property
    def value_dense(self):
        return self._value_dense

    @property
    def output_dense(self):
        return self._output_dense


def dense_layers(layer, query_shape, value_shape, key_shape):
    """Those of the projections of an `AttentionLayer`, and last that of its output.

    Args:
        layer: an `AttentionLayer`.
        query_shape, value_shape, key_shape: tuples, of its inputs.

    Returns:
        Dict of built layers by their names.
    """
    dense = functools.partial(
        heads_dense,
        use_bias=layer.use_bias,
        activity_regularizer=layer._activity_regularizer,
        dtype=layer.dtype_policy,
        **dense_options(layer),
    )
    heads, kv_heads = layer.num_heads, layer.num_key_value_heads
    sizes = {
        "query": (query_shape, (heads, layer.key_dim)),
        "key": (key_shape, (kv_heads, layer.key_dim)),
        "value": (value_shape, (kv_heads, layer.value_dim)),
    }
    made = {
        name: dense(name, shape, 1, of_heads)
        for name, (shape, of_heads) in sizes.items()
        if name in layer.projections
    }
    attended_shape = (*query_shape[:-1], heads, layer.value_dim)
    output_shape = layer._output_shape or (query_shape[-1],)
    name = "attention_output"
    return {**made, name: dense(name, attended_shape, 2, output_shape)}


def dense_options(layer):
    """Those options of an `AttentionLayer`, by name."""
    return {name: getattr(layer, name) for name in _NAMES}


def serialized_options(layer):
    """The same as entries of the layer's config."""
    config = {}
    for name, value in dense_options(layer).items():
        kind = getattr(keras, name.split("_")[1] + "s")  # keras.initializers, ...
        config[name] = kind.serialize(value)
    return config
