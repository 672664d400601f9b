"""Calls for the type checker of `make lint`, not to be run.

It must accept the first calls, and refuse each line that ends in `type: ignore[...]`;
otherwise it reports the comment as unused.
"""

from typing import assert_type

import numpy as np
import tensorflow as tf

import keras_performer
from keras_performer import feature_maps, layers, ops, zoo


def right(x: tf.Tensor, mask: np.ndarray) -> None:
    layer = keras_performer.PerformerAttention(
        8,
        64,
        output_shape=(4, 4),
        kernel_initializer="he_normal",
        feature_map=feature_maps.SoftmaxFeatures(regularized=False),
        num_random_features=None,
        jit_compile="auto",
        name="attention",
    )
    layer(x, key_mask=mask, return_state=True, state=layer.get_initial_state(2))
    layer.redraw_features(3)
    layers.PerformerBlock(layers.ExactAttention(8, 64, causal=True), 128)(x, mask)
    mixer = zoo.SpatialGatingUnit(64, 32, causal=True, name="mixer")
    layers.PerformerBlock(mixer, 128)(mixer(x, mask=mask), mask)
    encoded = layers.PerformerEncoder(128, 8, activation="gelu", exact_window=4)(x)
    decoder = keras_performer.PerformerDecoder(128, 8, normalize_first=True)
    decoder(x, encoded, encoder_padding_mask=mask, return_state=True)
    local = layers.LocalAttention(8, 64, sliding_window=4, rotary=(8, 8))
    local(x, positions=np.zeros((2, 64), "int32"))
    model = keras_performer.PerformerLM(
        256, num_layers=2, num_heads=4, hidden_dim=32, attention=[mixer, "none"]
    )
    tokens = keras_performer.generate(model, [[1, 2]], 8, top_k=3, verbose=0)
    tokens.astype("int64")
    keras_performer.generate(model, [[1], [2, 3]], 8, stop_tokens=[0]).append(None)
    keras_performer.generate(model, b"ab", 8, min_p=0.1).decode()
    for _ in keras_performer.generate_stream(model, [b"ab", b"c"], 8, chunk_size=4):
        pass

    kernel = ops.ExponentialKernel(ops.gaussian_matrix(8, 2, (0, 1)), trainable=True)
    ops.bidirectional_attention(x, x, x, kernel, mask, jit_compile=True)
    output, state = ops.causal_attention(x, x, x, kernel, ops.Visibility(mask))
    assert_type(state, ops.State)
    ops.causal_attention(x, x, x, kernel, state=state, chunk_size=32)
    assert_type(feature_maps.get("relu"), feature_maps.FeatureMap)


def wrong(x: tf.Tensor) -> None:
    layers.AttentionLayer(8, 64, rotary="line")  # type: ignore[arg-type]
    keras_performer.PerformerAttention("8", 64)  # type: ignore[arg-type]
    keras_performer.PerformerAttention(8, 64, feature_map=3)  # type: ignore[arg-type]
    keras_performer.PerformerAttention(8, 64, jit_compile="yes")  # type: ignore[arg-type]
    layer = layers.AttentionLayer(8, 64, causal="yes")  # type: ignore[arg-type]
    layer(x, retrun_state=True)  # type: ignore[call-arg]
    layers.PerformerBlock("performer", 128)  # type: ignore[arg-type]
    zoo.SinkhornAttention(8, 64, block_size=16)  # type: ignore[call-arg]
    zoo.FourierMixing("forward")  # type: ignore[arg-type]
    zoo.TokenMixing(64, 32)(x, key_mask=None)  # type: ignore[call-arg]
    layers.PerformerBlock(layer, 128)(x, return_state="yes")  # type: ignore[arg-type]
    model = keras_performer.PerformerLM(256, num_layers=2, num_heads=4, hidden_dim="8")  # type: ignore[arg-type]
    keras_performer.generate(model, [[1, 2]], 8, verbose=2)  # type: ignore[arg-type]
    keras_performer.RedrawFeatures(every_n_steps="10")  # type: ignore[arg-type]
    keras_performer.PerfomerAttention(8, 64)  # type: ignore[attr-defined]

    ops.bidirectional_attention(x, x, x, "softmax")  # type: ignore[arg-type]
    kernel = ops.ActivationKernel(x, "relu")  # type: ignore[arg-type]
    ops.causal_attention(x, x, x, kernel, None, None, 1.5)  # type: ignore[arg-type]
    ops.bidirectional_attention(x, x, x, kernel, call=print)  # type: ignore[call-arg]
    ops.chunk_scan(print, "2", x, x, x, None)  # type: ignore[arg-type]
    feature_maps.SoftmaxFeatures(hyperbolic="no")  # type: ignore[arg-type]
    feature_maps.GeneralizedFeatures(3)  # type: ignore[arg-type]
