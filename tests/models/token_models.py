"""A small language model and its training step, which tests of `models` share."""

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
    """A model that takes chunks of 4 tokens; `prepare` changes it before it trains."""
    keras.utils.set_random_seed(3)
    compiled = {"metrics": ["accuracy"], "loss": None}
    compiled.update((k, changes.pop(k)) for k in compiled if k in changes)
    options = dict(num_layers=2, num_heads=2, hidden_dim=8, max_length=16, seed=1)
    attention = changes.get("attention", "performer")
    if "performer" in (attention if isinstance(attention, list) else [attention]):
        options.update(num_random_features=6, chunk_size=4)
    options.update(recompute=recompute, **plain_options(attention))
    model = cls(11, **{**options, **changes})
    if prepare:
        prepare(model)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled["loss"] = compiled["loss"] or cross_entropy
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True, **compiled)
    return model


def loss_and_gradients(model, ids=IDS, targets=TARGETS, sample_weight=None):
    """Loss and gradients of a training step as Keras takes it."""
    with tf.GradientTape() as tape:
        x = WithTargets(ids, targets) if model.recompute else ids
        x = tf.nest.map_structure(tf.convert_to_tensor, x)
        outputs = model(x, training=True)
        loss = model.compute_loss(None, targets, outputs, sample_weight)
    gradients = tape.gradient(loss, model.trainable_weights)
    return loss, [tf.convert_to_tensor(g) for g in gradients]
