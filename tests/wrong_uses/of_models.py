"""Errors with models."""

import keras
import numpy as np

import keras_performer
from tests.wrong_uses.small import (
    FOUND_AS_IT_RUNS,
    IDS,
    X,
    language_model,
    made,
    sequential,
)
from tests.wrong_uses.wrong_use import WrongUse


def generated(prompt=((1, 2),), max_length=8, **options):
    return keras_performer.generate(language_model(**options), prompt, max_length)


def with_keras_attention():
    start = keras.Input((6, 8))
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    return keras.Model(start, attention(start, start))


WRONG_USES = {
    "Language models": [
        WrongUse(
            "num_heads must divide hidden_dim",
            "num_heads=3, hidden_dim=8",
            "must divide",
            lambda: keras_performer.PerformerLM(
                11, max_length=16, num_layers=1, num_heads=3, hidden_dim=8
            ),
        ),
        WrongUse(
            "position_embedding must be",
            "position_embedding='sinusoidal'",
            '"learned" or "rotary"',
            lambda: language_model(position_embedding="sinusoidal"),
        ),
        WrongUse(
            "The product of position_shape must be max_length",
            "position_shape=(3, 4), max_length=16",
            "must be max_length",
            lambda: language_model(position_shape=(3, 4)),
        ),
        WrongUse(
            'attention must be "performer", "exact", "none"',
            "attention='exakt'",
            "an AttentionLayer or the config of one",
            lambda: language_model(attention="exakt"),
        ),
        WrongUse(
            "attention must have one entry for each block",
            "2 entries, and num_layers=1",
            "if it is a list",
            lambda: language_model(attention=["exact", "exact"]),
        ),
        WrongUse(
            'These are options of attention="performer"',
            "attention='none'",
            "Leave them out",
            lambda: language_model(attention="none", num_random_features=8),
        ),
        WrongUse(
            "chunk_size is an option of PerformerAttention",
            "chunk_size=8",
            "leave it out",
            lambda: language_model(attention="exact", chunk_size=8),
        ),
        WrongUse(
            "recompute must be None",
            "recompute='layer'",
            '"block" or "network"',
            lambda: language_model(recompute="layer"),
        ),
        WrongUse(
            "recompute goes through a sequence in chunks",
            "recompute='block', causal=True and ExactAttention",
            "use recompute=None",
            lambda: language_model(recompute="block", attention="exact"),
        ),
        WrongUse(
            'recompute="network" needs causal=True',
            "causal=False",
            'Use recompute="block"',
            lambda: language_model(recompute="network", causal=False),
        ),
        WrongUse(
            "inputs must hold ids of tokens",
            "[-100",
            "pad with one of these, and pass a mask",
            lambda: language_model()(IDS - 101),
            FOUND_AS_IT_RUNS,
        ),
        WrongUse(
            "inputs must have at most max_length",
            "inputs of shape (1, 17)",
            "max_length=16 tokens",
            lambda: language_model()(np.ones((1, 17), "int32")),
        ),
        WrongUse(
            "inputs must be one int tensor (batch, length)",
            "type list",
            "Pass the tensor itself",
            lambda: language_model()([IDS, IDS]),
        ),
    ],
    "Generating": [
        WrongUse(
            "generate needs a PerformerLM with causal=True",
            "model=<PerformerLM",
            "make the model so",
            lambda: generated(causal=False),
        ),
        WrongUse(
            "generate needs an attention with a state",
            "ExactAttention has no state",
            'such as attention="performer"',
            lambda: generated(attention="exact"),
        ),
        WrongUse(
            "prompt must hold ids of tokens",
            "prompt[0, 1] = 12",
            "ints from 0 to 10",
            lambda: generated([[1, 12]]),
        ),
        WrongUse(
            "prompt must be ints or bytes",
            "prompt='hello'",
            "encode text, as with text.encode()",
            lambda: generated("hello"),
        ),
        WrongUse(
            "prompt must have at least one token in each sequence",
            "prompt[1] of length 0",
            "at least one token",
            lambda: generated([[1, 2, 3], np.zeros(0, int)]),
        ),
        WrongUse(
            "max_length must be at most model.max_length + 1",
            "max_length=30",
            "= 17",
            lambda: generated(max_length=30),
        ),
    ],
    "Converting, calibrating, checking": [
        WrongUse(
            "model must be a Keras model or layer",
            "model='model.keras'",
            "load a file by keras.saving.load_model first",
            lambda: keras_performer.convert_to_performer("model.keras"),
        ),
        WrongUse(
            "model must be built",
            "MultiHeadAttention attention, not built",
            "call it on data first",
            lambda: keras_performer.convert_to_performer(
                keras.layers.MultiHeadAttention(2, 4, name="attention")
            ),
        ),
        WrongUse(
            "model must have attention that can be replaced",
            "without attention",
            "exchange others by hand",
            lambda: keras_performer.convert_to_performer(
                sequential(keras.layers.Dense(2))
            ),
        ),
        WrongUse(
            "model must have PerformerAttention of the softmax kernel",
            "It has none",
            "see `convert_to_performer`",
            lambda: keras_performer.calibrate(with_keras_attention(), X),
        ),
        WrongUse(
            "data must be what the model is called with",
            "type list",
            "an array or a nest of arrays",
            lambda: keras_performer.calibrate(sequential(made()), []),
        ),
        WrongUse(
            "data must have at least one batch",
            "without batches",
            "make an iterator anew once it has ended",
            lambda: keras_performer.approximation_report(sequential(made()), iter([])),
        ),
        WrongUse(
            "teacher must have exact attention where model has",
            "It has PerformerAttention",
            "see `convert_to_softmax`",
            lambda: keras_performer.transfer_attention(
                sequential(made()), sequential(made()), X
            ),
        ),
        WrongUse(
            "Outputs before token 1 change",
            "by up to",
            "hide later keys there (causal=True",
            lambda: keras_performer.testing.check_causal(sequential(made())),
            AssertionError,
        ),
        WrongUse(
            "Masks must be of shape (B, T)",
            "Received from layers of the model: []",
            "such as Embedding(mask_zero=True)",
            lambda: keras_performer.testing.check_masks(sequential(made())),
        ),
    ],
}
