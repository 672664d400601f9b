"""BERT and ALBERT with a head for masked tokens, as functional Keras models."""

import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a model; ALBERT has a smaller `embedding_dim`, and a dense layer."""

    vocabulary_size: int
    max_length: int
    embedding_dim: int
    hidden_dim: int
    intermediate_dim: int
    num_layers: int
    num_heads: int
    epsilon: float = 1e-12


def config_of(saved):
    """Makes a `Config` from the `config.json` of one of the `sources`."""
    return Config(
        vocabulary_size=saved["vocab_size"],
        max_length=saved["max_position_embeddings"],
        embedding_dim=saved.get("embedding_size", saved["hidden_size"]),
        hidden_dim=saved["hidden_size"],
        intermediate_dim=saved["intermediate_size"],
        num_layers=saved["num_hidden_layers"],
        num_heads=saved["num_attention_heads"],
        epsilon=saved["layer_norm_eps"],
    )


def make_model(config, attention=keras.layers.MultiHeadAttention):
    """Makes a model from tokens `(B, T)`, padded with 0, to logits `(B, T, vocab)`.

    Blocks normalize after the residual, as BERT does. Blocks of ALBERT share weights;
    here each block has its own copy, so that each attention layer can be converted by
    its own inputs.
    `attention` makes a layer from the arguments `num_heads`, `key_dim` and `name`.
    """
    dense, hidden = keras.layers.Dense, config.hidden_dim

    def normalization(name):
        return keras.layers.LayerNormalization(epsilon=config.epsilon, name=name)

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    # visible keys `(B, 1, T)`, the same for all queries
    visible = keras.ops.expand_dims(keras.ops.not_equal(tokens, 0), 1)
    places = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    sizes = {"token": config.vocabulary_size, "position": config.max_length}
    token, position = (
        keras.layers.Embedding(size, config.embedding_dim, name=f"{name}_embedding")
        for name, size in sizes.items()
    )
    x = normalization("embedding_norm")(token(tokens) + position(places))
    if config.embedding_dim != hidden:
        x = dense(hidden, name="embedding_to_hidden")(x)
    for i in range(config.num_layers):
        layer = attention(
            num_heads=config.num_heads,
            key_dim=hidden // config.num_heads,
            name=f"attention_{i}",
        )
        attended = layer(x, x, attention_mask=visible)
        x = normalization(f"attention_norm_{i}")(x + attended)
        wide = dense(config.intermediate_dim, "gelu", name=f"feed_forward_{i}")(x)
        narrow = dense(hidden, name=f"feed_forward_output_{i}")(wide)
        x = normalization(f"output_norm_{i}")(x + narrow)
    x = dense(config.embedding_dim, "gelu", name="head")(x)
    x = normalization("head_norm")(x)
    logits = dense(config.vocabulary_size, name="logits")(x)
    return keras.Model(tokens, logits)


def load(model, tensors, names):
    """Loads weights that PyTorch saved into a model.

    `tensors` maps PyTorch names to arrays. `names` maps layer names to PyTorch names
    without ".weight" and ".bias". The four dense layers of `attention_3` are called
    `query_3`, `key_3`, `value_3` and `attention_output_3`.
    """
    for name, layer in layers_with_weights(model):
        arrays = [tensors[f"{names[name]}.weight"]]
        if hasattr(layer, "kernel"):
            arrays[0] = arrays[0].T
        if len(layer.weights) == 2:
            arrays.append(tensors[f"{names[name]}.bias"])
        for array, weight in zip(arrays, layer.weights, strict=True):
            weight.assign(array.reshape(weight.shape))


def layers_with_weights(model):
    """Yields names and layers; an attention layer yields its dense layers."""
    for layer in model.layers:
        if hasattr(layer, "query_dense"):
            index = layer.name.removeprefix("attention_")
            yield f"query_{index}", layer.query_dense
            yield f"key_{index}", layer.key_dense
            yield f"value_{index}", layer.value_dense
            yield f"attention_output_{index}", layer.output_dense
        elif layer.weights:
            yield layer.name, layer
