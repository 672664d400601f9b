"""A seed that a layer saves, of which it draws in each call alike."""

import keras

from keras_performer.layers.drawn_weights import first_seed


class SavedSeed(keras.layers.Layer):
    """Holds a seed as a weight, so that what is drawn of it is the same once loaded.

    Args:
        seed: int or `None`.
        name: str.
    """

    def __init__(self, seed, name):
        super().__init__(name=name)
        self.first_seed = seed

    def build(self, input_shape=None):
        self.seed = self.add_weight(
            name="seed",
            shape=(),
            dtype="int32",
            initializer=keras.initializers.Constant(first_seed(self.first_seed)),
            trainable=False,
            autocast=False,
        )

    def load_own_variables(self, store):
        # a file of an attention that draws nothing has none: it stays
        if store.keys():
            super().load_own_variables(store)
