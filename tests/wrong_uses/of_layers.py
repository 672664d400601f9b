"""Errors in making a layer."""

import keras
import numpy as np

import keras_performer
from keras_performer import layers, zoo
from tests.wrong_uses.small import X, made, sequential
from tests.wrong_uses.wrong_use import WrongUse


def redrawn(layer):
    layer(X)
    layer.redraw_features()


def fitted():
    model = sequential(keras.layers.Dense(2))
    model.compile("sgd", "mse")
    targets = np.zeros((2, 6, 2))
    model.fit(X, targets, verbose=0, callbacks=[keras_performer.RedrawFeatures(1)])


WRONG_USES = {
    "Making a layer": [
        WrongUse(
            "num_heads must be a positive int",
            "num_heads=0",
            "positive int",
            lambda: made(0, 4),
        ),
        WrongUse(
            "value_dim must be a positive int or None",
            "value_dim=0",
            "or None",
            lambda: made(value_dim=0),
        ),
        WrongUse(
            "dropout must be a float in the range [0, 1)",
            "dropout='0.1'",
            "a float",
            lambda: made(dropout="0.1"),
        ),
        WrongUse(
            "num_key_value_heads must divide num_heads",
            "num_key_value_heads=3, num_heads=4",
            "must divide",
            lambda: made(4, 4, num_key_value_heads=3),
        ),
        WrongUse(
            "PerformerAttention has no argument attention_axes",
            "attention_axes=2",
            "Move other axes there, or into the batch",
            lambda: made(attention_axes=2),
        ),
        WrongUse(
            "rotary needs a key_dim divisible by 2 for each axis of positions",
            "key_dim=5, rotary=True",
            "here by 2",
            lambda: made(2, 5, rotary=True),
        ),
        WrongUse(
            "PerformerAttention has no argument sliding_window",
            "sliding_window=64",
            "use LocalAttention for local attention",
            lambda: made(sliding_window=64),
        ),
        WrongUse(
            "PerformerAttention has no argument flash_attention",
            "flash_attention=True",
            "Leave it out, or use keras.layers.MultiHeadAttention",
            lambda: made(flash_attention=True),
        ),
        WrongUse(
            "PerformerAttention has no argument use_gate",
            "use_gate=True",
            "multiply by a gate after the layer",
            lambda: made(use_gate=True),
        ),
        WrongUse(
            "dtype must be one of floats",
            "dtype='int32'",
            'such as "float32" or "mixed_bfloat16"',
            lambda: made(dtype="int32"),
        ),
        WrongUse(
            "autocast must be False",
            "autocast=True",
            "Leave it out",
            lambda: made(autocast=True),
        ),
        WrongUse(
            "jit_compile must be",
            "jit_compile='always'",
            'True, False or "auto"',
            lambda: made(jit_compile="always"),
        ),
        WrongUse(
            "attention must be an AttentionLayer or a MixingLayer",
            "<MultiHeadAttention",
            "ExactAttention has the place of keras.layers.MultiHeadAttention",
            lambda: layers.PerformerBlock(keras.layers.MultiHeadAttention(2, 4), 16),
        ),
        WrongUse(
            "LinformerAttention cannot hide later tokens",
            "causal=True",
            "make it with causal=False",
            lambda: zoo.LinformerAttention(2, 4, max_length=8, causal=True),
        ),
        WrongUse(
            "block_size must be a positive int",
            "block_size=0",
            "positive int",
            lambda: zoo.BigBirdAttention(2, 4, block_size=0),
        ),
        WrongUse(
            "PerformerAttention has no argument exact_below",
            "exact_below=10",
            'ExactAttention or attention="exact"',
            lambda: made(exact_below=10),
        ),
        WrongUse(
            "PerformerEncoder has no argument exact_widow",
            "exact_widow=10",
            "did you mean exact_window?",
            lambda: layers.PerformerEncoder(8, 2, exact_widow=10),
        ),
        WrongUse(
            "num_heads is no option of convert_to_performer",
            "num_heads=2",
            "leave it out",
            lambda: keras_performer.convert_to_performer(made(), num_heads=2),
        ),
        WrongUse(
            "attention must have the causal of the layer or model around it",
            "causal=False, and attention with causal=True",
            "of the layer or model",
            lambda: layers.PerformerEncoder(8, 2, attention=made(causal=True)),
        ),
        WrongUse(
            "LocalAttention attends to its own sequence alone",
            "attention='self_attention'",
            "use PerformerAttention, ExactAttention or another",
            lambda: layers.PerformerDecoder(
                8, 2, attention=layers.LocalAttention(2, 4, sliding_window=3)
            )(X, X),
        ),
    ],
    "Feature maps": [
        WrongUse(
            "feature_map must be one of",
            "feature_map='sotfmax'",
            "softmax, favor+, taylor",
            lambda: made(feature_map="sotfmax"),
        ),
        WrongUse(
            "SoftmaxFeatures needs random features",
            "num_random_features=None",
            "must be a positive int",
            lambda: made(num_random_features=None),
        ),
        WrongUse(
            "Hyperbolic features come in pairs",
            "num_random_features=7",
            "make it even or use SoftmaxFeatures(hyperbolic=False)",
            lambda: made(num_random_features=7),
        ),
        WrongUse(
            "TaylorFeatures has no random features",
            "num_random_features=256",
            "use num_random_features=None",
            lambda: made(feature_map="taylor", num_random_features=256),
        ),
        WrongUse(
            "exact_window needs features that estimate softmax",
            "exact_window=10",
            'Use feature_map="softmax" or exact_window=None',
            lambda: made(feature_map="relu", exact_window=10),
        ),
        WrongUse(
            "initial_log_gain is that of keys outside of an exact window",
            "initial_log_gain=1.0, exact_window=None",
            "give exact_window as well",
            lambda: made(initial_log_gain=1.0),
        ),
        WrongUse(
            "activation cannot be saved or cloned",
            "<lambda>",
            "@keras.saving.register_keras_serializable()",
            lambda: made(
                feature_map=keras_performer.feature_maps.GeneralizedFeatures(
                    lambda x: x
                )
            ).get_config(),
        ),
        WrongUse(
            "redraw_features needs a built layer with random features",
            "built=False",
            "call the layer first",
            lambda: made().redraw_features(),
        ),
        WrongUse(
            "redraw_features needs a built layer with random features",
            "num_random_features=None",
            "make it with num_random_features",
            lambda: redrawn(made(feature_map="relu", num_random_features=None)),
        ),
        WrongUse(
            "RedrawFeatures needs a model with at least one PerformerAttention",
            "without any",
            "that has random features",
            fitted,
        ),
    ],
}
