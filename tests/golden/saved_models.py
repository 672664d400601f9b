"""Models that the recorded commit saved after redraws."""

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerAttention, generate
from tests.golden.inputs import ids, normal, set_weights
from tests.layers.inputs import language_model

INPUTS = {
    "functional": ids("functional", (3, 9), 7),
    "sequential": normal("sequential", (2, 8, 6)),
    "lm": ids("lm", (2, 10), 11),
}


def functional(seed=1):
    """Returns a model with an implicit mask, self-attention and cross-attention."""
    attention = dict(num_heads=2, key_dim=4, num_random_features=6, seed=seed)
    inputs = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(7, 6, mask_zero=True, name="embedding")(inputs)
    own = PerformerAttention(causal=True, num_key_value_heads=1, **attention)(x)
    cross = PerformerAttention(value_dim=3, use_bias=False, **attention)(own, x)
    return keras.Model(inputs, keras.layers.Add()([x, own, cross]), name="functional")


def sequential(seed=1):
    """Returns a model without given names, with one layer without random features."""
    attention = dict(num_heads=2, key_dim=4, seed=seed)
    return keras.Sequential(
        [
            keras.Input((None, 6)),
            PerformerAttention(num_random_features=8, dropout=0.1, **attention),
            keras.layers.LayerNormalization(),
            PerformerAttention(
                feature_map="relu",
                num_random_features=None,
                output_shape=5,
                **attention,
            ),
        ]
    )


def lm(seed=1):
    return language_model(
        intermediate_dim=12,
        num_random_features=6,
        feature_map="favor+",
        position_shape=(4, 4),
        seed=seed,
    )


MAKE = {"functional": functional, "sequential": sequential, "lm": lm}


def make(name, seed=1):
    """Returns a model with the names of a new session, which are without numbers."""
    keras.utils.clear_session(free_memory=False)
    return MAKE[name](seed)


def make_to_save(name):
    model = make(name)
    set_weights(model)
    for redraws, layer in enumerate(_with_features(model)):
        layer.redraw_features(redraws + 2)
    return model


def weights(model):
    """Returns path, shape and dtype of all weights in order, and marks frozen ones."""
    return [
        f"{weight.path} {tuple(weight.shape)} {weight.dtype}"
        + ("" if weight.trainable else " not trained")
        for weight in model.weights
    ]


def outputs(name, model):
    """Returns the model's outputs before and after one more redraw."""
    inputs = tf.constant(INPUTS[name])
    numbers = {"output": model(inputs)}
    if name == "lm":
        numbers["tokens"] = generate(model, INPUTS[name][:, :3], 8, temperature=0)
    for index, layer in enumerate(_with_features(model)):
        layer.redraw_features()
        numbers[f"count {index}"] = layer.redraw_count
        numbers[f"matrix {index}"] = layer.projection_matrix
    numbers["output redrawn"] = model(inputs)
    return {key: np.asarray(x) for key, x in numbers.items()}


def _with_features(model):
    layers = model._flatten_layers()
    attentions = [x for x in layers if isinstance(x, PerformerAttention)]
    return [x for x in attentions if x.num_random_features is not None]
