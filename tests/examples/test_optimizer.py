"""The optimizer's step, by hand, on one device and on several."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import optimizer
from examples.imagenet64.config import Config

# With an epsilon as large as this a step is in proportion to the gradient.
CONFIG = Config(
    learning_rate=10.0,
    learning_rate_decay="none",
    warmup_steps=0,
    weight_decay=0.01,
    epsilon=100.0,
)
TOKENS = np.array([[0, 1, 1, 2], [1, 1, 1, 3], [2, 0, 1, 1], [3, 3, 3, 1]])
TARGETS = np.array([[3.0], [-8.0], [5.0], [2.0]])


def make_model():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(5, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def step_by_hand(config):
    model = make_model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(TOKENS) - TARGETS) ** 2)
    before = [v.numpy().astype("float64") for v in model.trainable_variables]
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    gradients = [tf.convert_to_tensor(g).numpy().astype("float64") for g in gradients]
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    if config.global_clipnorm:
        # Also a sum that was divided by the replicas would then not be clipped.
        assert config.global_clipnorm < norm < 1.9 * config.global_clipnorm
        gradients = [g * config.global_clipnorm / norm for g in gradients]
    # The first step of Adam as Keras takes it, whose epsilon stands beside sqrt(v).
    root = np.sqrt(1 - config.beta_2)
    return [
        v
        - config.learning_rate * (root * g / (root * abs(g) + config.epsilon))
        - config.learning_rate * config.weight_decay * v
        for v, g in zip(before, gradients, strict=True)
    ]


@pytest.mark.parametrize("replicas, clip", [(1, 4.0), (2, None), (4, 4.0)])
def test_a_step_is_that_of_the_whole_batch(replicas, clip):
    config = dataclasses.replace(CONFIG, global_clipnorm=clip)
    keras.utils.set_random_seed(1)
    expected = step_by_hand(config)
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        devices = [f"CPU:{index}" for index in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(devices)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model()
        model.compile(optimizer.make(config), "mse", jit_compile=False)
    model.fit(TOKENS, TARGETS, batch_size=4, shuffle=False, verbose=0)
    for value, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=2e-6)


def test_the_learning_rate_warms_up_and_decays():
    def rates(**changes):
        config = Config(num_steps=100, learning_rate=1.0, **changes)
        rate = optimizer.learning_rate(config)
        return [float(rate(step)) for step in (0, 5, 10, 55, 100)]

    cosine = rates(warmup_steps=10, learning_rate_decay="cosine")
    np.testing.assert_allclose(cosine, [0, 0.5, 1, 0.505, 0.01], atol=1e-6)
    flat = rates(warmup_steps=10, learning_rate_decay="none")
    np.testing.assert_allclose(flat, [0, 0.5, 1, 1, 1], atol=1e-6)
