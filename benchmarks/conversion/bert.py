"""BERT and ALBERT with a head for masked tokens, as functional Keras models."""

import keras


def make_model(config, attention=keras.layers.MultiHeadAttention):
    """Makes a model from tokens `(B, T)`, padded with 0, to logits `(B, T, vocab)`.

    Blocks normalize after the residual, as BERT does. Blocks of ALBERT share weights;
    here each block has its own copy, so that each attention layer can be converted by
    its own inputs.

    Args:
        config: dict, the `config.json` of one of the `sources`. ALBERT's embeddings
            may be smaller than `"hidden_size"`; a dense layer follows them.
        attention: makes a layer from the arguments `num_heads`, `key_dim` and `name`.
    """
    dense, hidden = keras.layers.Dense, config["hidden_size"]
    embedding_dim = config.get("embedding_size", hidden)
    num_heads = config["num_attention_heads"]

    def normalization(name):
        epsilon = config["layer_norm_eps"]
        return keras.layers.LayerNormalization(epsilon=epsilon, name=name)

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    # visible keys `(B, 1, T)`, the same for all queries
    visible = keras.ops.expand_dims(keras.ops.not_equal(tokens, 0), 1)
    places = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    vocabulary_size = config["vocab_size"]
    sizes = {"token": vocabulary_size, "position": config["max_position_embeddings"]}
    token, position = (
        keras.layers.Embedding(size, embedding_dim, name=f"{name}_embedding")
        for name, size in sizes.items()
    )
    x = normalization("embedding_norm")(token(tokens) + position(places))
    if embedding_dim != hidden:
        x = dense(hidden, name="embedding_to_hidden")(x)
    for i in range(config["num_hidden_layers"]):
        layer = attention(
            num_heads=num_heads, key_dim=hidden // num_heads, name=f"attention_{i}"
        )
        attended = layer(x, x, attention_mask=visible)
        x = normalization(f"attention_norm_{i}")(x + attended)
        wide = dense(config["intermediate_size"], "gelu", name=f"feed_forward_{i}")(x)
        narrow = dense(hidden, name=f"feed_forward_output_{i}")(wide)
        x = normalization(f"output_norm_{i}")(x + narrow)
    x = dense(embedding_dim, "gelu", name="head")(x)
    x = normalization("head_norm")(x)
    logits = dense(vocabulary_size, name="logits")(x)
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
