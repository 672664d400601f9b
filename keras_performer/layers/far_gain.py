"""The ratio of what is estimated to what is exact, a weight of each head."""

import keras
import numpy as np
import tensorflow as tf

# How many times faster than other weights the gain moves. With 1 it stays behind, and
# recall over 512 tokens trains to 0.05 instead of 0.96.
SPEED = 10.0


class FarGain(keras.layers.Layer):
    """What is added to the log-weights of keys outside of an exact window.

    An estimate is biased and noisy, exact weights are not: beside them attention learns
    to retrieve far keys only if it can find the ratio of the two.

    Args:
        num_heads: int N.
        initial: float, what is added at first, or one for each head.
    """

    def __init__(self, num_heads, initial=0.0):
        super().__init__(name="far_gain", dtype="float32")
        self.num_heads = num_heads
        self.initial = initial

    def build(self, input_shape=None):
        self.log_gain = self.add_weight(
            name="log_gain",
            shape=(self.num_heads,),
            initializer=keras.initializers.Constant(np.divide(self.initial, SPEED)),
            autocast=False,
        )

    def of_heads(self):
        """The gain of each head, a tensor `(N,)`."""
        return SPEED * tf.convert_to_tensor(self.log_gain)

    def load_own_variables(self, store):
        # a file of attention without a window has none: it stays
        if store.keys():
            super().load_own_variables(store)
