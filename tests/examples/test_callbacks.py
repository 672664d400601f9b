import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from examples.imagenet64 import callbacks
from examples.imagenet64.config import Config


@pytest.mark.parametrize("replicas", [1, 2])
def test_dropout_is_a_function_of_the_seed_and_the_step(replicas):
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        devices = [f"CPU:{index}" for index in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(devices)

    def dropped(seed, step, calls_before=0):
        """Values that two layers drop on each replica, in another model each time."""
        with strategy.scope():
            layers = [keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)]
            model = keras.Sequential([keras.Input((50,)), *layers])
            model.compile("sgd", "mse")
            model.optimizer.iterations.assign(step)
        for _ in range(calls_before):
            model(np.ones((1, 50)), training=True)
        callback = callbacks.SeedDropout(seed)
        callback.set_model(model)
        callback.on_epoch_begin(0)

        def mask(layer):
            parts = strategy.run(lambda: layer(tf.ones((1, 50)), training=True))
            return np.stack(strategy.experimental_local_results(parts))

        return np.stack([mask(layer) for layer in layers])

    first = dropped(seed=1, step=2)
    assert 20 < (first == 0).sum() / replicas < 80  # of 100; a z-score of 6
    np.testing.assert_array_equal(dropped(seed=1, step=2, calls_before=3), first)
    for other in (dropped(seed=1, step=3), dropped(seed=2, step=2), first[::-1]):
        assert (other != first).mean() > 0.2


def test_features_are_redrawn_only_where_there_are_some():
    for attention, expected in (("performer", 1), ("none", 0)):
        chosen = callbacks.make(Config(attention=attention), is_chief=True)
        redraws = [isinstance(x, keras_performer.RedrawFeatures) for x in chosen]
        assert sum(redraws) == expected
