"""Random features, dropout and generated tokens, which later versions keep for a seed.

Other tests compare outputs and gradients with the definitions of layers; no definition
says which random numbers a seed stands for.
"""

import functools
import itertools

import keras
import numpy as np
import tensorflow as tf

from keras_performer import (
    PerformerAttention,
    PerformerLM,
    RedrawFeatures,
    feature_maps,
    generate,
)
from tests.golden.inputs import ids, normal, set_weights
from tests.layers.inputs import plain_options

VOCABULARY = 11
IDS = ids("inputs", (3, 12), VOCABULARY)
TARGETS = ids("targets", (3, 12), VOCABULARY)


def draws():
    """Returns three samples of each map's random features, with an incomplete block."""
    numbers, words = {}, ("hyperbolic", "regularized", "orthogonal")
    for chosen in itertools.product((False, True), repeat=3):
        map_ = feature_maps.SoftmaxFeatures(*chosen)
        name = " ".join(w for w, is_so in zip(words, chosen) if is_so) or "plain"
        for redraw in range(3):
            matrix = map_.draw(6, 4, tf.constant([3, redraw]))
            numbers[f"{name} {redraw}"] = matrix
    numbers["relu"] = feature_maps.get("relu").draw(5, 3, tf.constant([1, 2]))
    return numbers


def dropout():
    """Returns the output of attention in training."""
    layer = PerformerAttention(
        2, 4, num_random_features=10, seed=5, dropout=0.4, name="attention"
    )
    x = normal("query", (2, 13, 7))
    layer.build(x.shape)
    set_weights(layer)
    return {"output": layer(x, training=True)}


def _model(**options):
    defaults = dict(num_layers=2, num_heads=2, hidden_dim=8, num_random_features=6)
    defaults.update(intermediate_dim=12, chunk_size=4, seed=1, **plain_options())
    defaults.update(position_embedding="learned", max_length=24, name="lm")
    model = PerformerLM(VOCABULARY, **{**defaults, **options})
    set_weights(model)
    return model


def training(steps, callbacks=(), **options):
    """Returns the loss of each step, and the number of redraws in each block."""
    model = _model(**options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.5), loss, run_eagerly=True)
    # one batch per epoch, so that the history has the loss of every step
    data = dict(x=IDS, y=TARGETS, batch_size=3, epochs=steps, verbose=0)
    history = model.fit(**data, callbacks=list(callbacks)).history
    redraws = [int(block.attention.redraw_count) for block in model.blocks]
    return {"loss": history["loss"], "redraws": redraws}


def generated():
    model = _model(num_layers=1)
    options = dict(temperature=1.5, top_k=6, top_p=0.9, seed=4)
    return {"tokens": generate(model, IDS[:, :4], 16, **options)}


def redrawn():
    """Returns the layers' own random features, before and after redraws."""
    model, numbers = _model(num_layers=1), {}
    (block,) = model.blocks
    for redraws in (0, 1, 2):
        if redraws:
            block.attention.redraw_features(redraws)
        numbers[f"count {redraws}"] = block.attention.redraw_count
        numbers[f"matrix {redraws}"] = block.attention.projection_matrix
    return {**numbers, "logits": model(IDS)}


CASES = {
    "draws": draws,
    "dropout": dropout,
    "train with dropout": functools.partial(
        training, steps=2, recompute="block", dropout=0.2
    ),
    "train and redraw": functools.partial(
        training, steps=3, callbacks=[RedrawFeatures(2)], num_layers=1
    ),
    "generate": generated,
    "redrawn": redrawn,
}


def compute(name):
    """Returns the numbers of a configuration, a dict of NumPy arrays by name."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    return {key: np.asarray(x) for key, x in CASES[name]().items()}
