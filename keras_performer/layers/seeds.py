"""The seeds of what a layer draws once and saves."""

import random

import keras

_MAX_SEED = 2**31 - 1


def drawn_seed(seed):
    """An int for an int32 weight: the seed of a layer, or a random one for `None`."""
    if seed is None:
        # what keras.utils.set_random_seed seeds, as for Keras' own layers
        seed = random.randrange(_MAX_SEED)
    return seed % _MAX_SEED


class SavedSeed(keras.layers.Layer):
    """Holds a seed as a weight, so that what is drawn of it is the same once loaded.

    Args:
        seed: int or `None`.
        name: str.
    """

    def __init__(self, seed, name):
        super().__init__(name=name, trainable=False)
        self.first_seed = seed

    def build(self, input_shape=None):
        self.seed = self.add_weight(
            name="seed",
            shape=(),
            dtype="int32",
            initializer=keras.initializers.Constant(drawn_seed(self.first_seed)),
            trainable=False,
            autocast=False,
        )

    def load_own_variables(self, store):
        # a file of an attention that draws nothing has none: it stays
        if store.keys():
            super().load_own_variables(store)
