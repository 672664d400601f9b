"""A small language model, its training step, and checks of it."""

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerLM
from keras_performer.recompute import WithTargets
from tests.layers.inputs import plain_options

RANDOM = np.random.default_rng(0)
IDS, TARGETS = RANDOM.integers(0, 11, (2, 4, 11))
WEIGHTS = RANDOM.uniform(0, 2, IDS.shape)
MODES = ("block", "network")


def small_model(recompute=None, cls=PerformerLM, prepare=None, **changes):
    """Returns a model with chunks of 4 tokens; `prepare` changes it before training."""
    keras.utils.set_random_seed(3)
    compiled = {"metrics": ["accuracy"], "loss": None}
    compiled.update((k, changes.pop(k)) for k in compiled if k in changes)
    options = dict(num_layers=2, num_heads=2, hidden_dim=8, max_length=16, seed=1)
    options["vocabulary_size"] = 11
    attention = changes.get("attention", "performer")
    if "performer" in (attention if isinstance(attention, list) else [attention]):
        options.update(num_random_features=6, chunk_size=4)
    options.update(recompute=recompute, **plain_options(attention))
    model = cls(**{**options, **changes})
    if prepare:
        prepare(model)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled["loss"] = compiled["loss"] or cross_entropy
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True, **compiled)
    return model


def loss_and_gradients(model, ids=IDS, targets=TARGETS):
    """Returns the loss and gradients of a training step as in Keras."""
    with tf.GradientTape() as tape:
        x = WithTargets(ids, targets) if model.recompute else ids
        x = tf.nest.map_structure(tf.convert_to_tensor, x)
        outputs = model(x, training=True)
        loss = model.compute_loss(None, targets, outputs)
    gradients = tape.gradient(loss, model.trainable_weights)
    return loss, [tf.convert_to_tensor(g) for g in gradients]


def assert_close(found, expected, tolerance=None):
    """Compares nests of tensors.

    Args:
        tolerance: float, largest error relative to the largest number of a tensor.
            Defaults to 1e-10 for float64, 1e-5 otherwise.
    """
    for one, wanted in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        wanted = np.asarray(wanted)
        limit = tolerance or (1e-10 if wanted.dtype == np.float64 else 1e-5)
        limit *= max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(one, wanted, rtol=0, atol=limit)


def assert_likeliest(model, tokens, start):
    """Checks that each token from `start` on is the likeliest after earlier ones."""
    likeliest = model(tokens[:, :-1]).numpy().argmax(-1)
    np.testing.assert_array_equal(tokens[:, start:], likeliest[:, start - 1 :])


def reloaded(model):
    model.save("model.keras")
    return keras.models.load_model("model.keras")


def moved_by_token_4(model):
    """Returns the indices of outputs that change if token 4 of `IDS` changes."""
    changed = IDS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    moved = np.abs(model(changed) - model(IDS)).max((0, 2)) > 1e-6
    return np.flatnonzero(moved).tolist()
