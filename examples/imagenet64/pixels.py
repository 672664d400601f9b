"""How pixels go into the model and out of it: an embedding and a head.

Sub-pixel i is row, column and channel i // 192, i // 3 % 64, i % 3.
"""

import keras
import tensorflow as tf

from examples.imagenet64 import likelihoods
from keras_performer.layers import EmbeddingLayer

CHANNELS = 3
ROW = 64 * CHANNELS
LENGTH = 64 * ROW
# Which earlier sub-pixels the model sees beside the state of its attention, as
# distances in the sequence: the last pixels, and those around the one above.
SAME_CHANNEL_OF_PREVIOUS_PIXEL = CHANNELS
PREVIOUS = tuple(range(1, 12))
ABOVE = tuple(range(ROW - 8, ROW + 9)) + (2 * ROW - 3, 2 * ROW, 2 * ROW + 3)
UNIT = 32.0  # colours are divided by this, so that differences are of order one


def shift(images):
    """Images `(B, 64, 64, 3)` to inputs and targets `(B, 12288)`."""
    targets = tf.reshape(tf.cast(images, tf.int32), (-1, LENGTH))
    return tf.pad(targets[:, :-1], [[0, 0], [1, 0]]), targets


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelEmbedding(EmbeddingLayer):
    """Reads colours as numbers, relative to a nearby colour.

    Instead of an embedded token each position gets the differences between earlier
    sub-pixels and a reference, the same channel of the previous pixel (of the pixel
    above, in the first column). A linear prediction from these differences, which
    `fit_prediction` fits once, is added to the reference; the sum goes to the head.

    Args:
        distances: tuple of ints, which earlier sub-pixels are read.
        output_dim: int, width of the model.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor of colours `(B, T)`.
        state: dict of the `"position"` that follows, `(B,)`, and the inputs `"seen"`
            before it, as many as the largest distance reaches back to.
    """

    extra_dtypes = tf.float32  # of the reference

    def __init__(self, distances, output_dim, **kwargs):
        super().__init__(**kwargs)
        self.distances = tuple(distances)
        self.output_dim = output_dim
        self.kernel_initializer = keras.initializers.GlorotUniform()

    def build(self, input_shape):
        width = CHANNELS * len(self.distances)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(width, self.output_dim),
            initializer=self.kernel_initializer,
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.output_dim,), initializer="zeros"
        )
        self.prediction = self.add_weight(
            name="prediction",
            shape=(width, 1),
            initializer="zeros",
            # float32 throughout: colours up to 255 in steps of 1
            dtype="float32",
            autocast=False,
            trainable=False,
        )

    def empty_state(self, batch_size):
        seen = tf.zeros((batch_size, max(self.distances) - 1), tf.int32)
        return {"position": tf.zeros((batch_size,), tf.int32), "seen": seen}

    def call(self, inputs, state):
        inputs = tf.cast(inputs, tf.int32)
        seen = tf.concat([state["seen"], inputs], 1)
        reference, differences = self._look_back(inputs, seen, state["position"])
        reference += UNIT * keras.ops.matmul(differences, self.prediction)[..., 0]
        x = tf.cast(differences, self.compute_dtype)
        x = keras.ops.add(keras.ops.matmul(x, self.kernel), self.bias)
        position = state["position"] + tf.shape(inputs)[1]
        last = seen[:, -state["seen"].shape[1] :]
        return x, reference, {"position": position, "seen": last}

    def fit_prediction(self, images):
        """Fits the linear prediction to training images by least squares.

        Args:
            images: uint8 tensor `(n, 64, 64, 3)`.
        """
        inputs, targets = shift(images)
        start = self.empty_state(inputs.shape[0])
        seen = tf.concat([start["seen"], inputs], 1)
        reference, x = self._look_back(inputs, seen, start["position"])
        y = (tf.cast(targets, tf.float32) - reference) / UNIT
        x, y = tf.reshape(x, (-1, x.shape[-1])), tf.reshape(y, (-1, 1))
        kernel = tf.linalg.lstsq(x, y, l2_regularizer=1.0)
        self.prediction.assign(kernel)

    def load_own_variables(self, store):
        if "2" not in store:
            # a file from before this was a layer: the model held the prediction
            old = store.h5_file["layers/dense_2/vars/0"]
            store = {**{name: store[name] for name in store.keys()}, "2": old}
        super().load_own_variables(store)

    def _look_back(self, inputs, seen, position):
        """The reference `(B, T)`, and the differences to it for each channel.

        Differences are `(B, T, 3 * distances)`: a position's own channel holds them,
        the others are 0, so that a dense layer has weights for each channel.
        """
        length = tf.shape(inputs)[1]
        index = position[:, tf.newaxis] + tf.range(length)
        column = index // CHANNELS % 64

        def earlier(distance):
            first = max(self.distances) - distance
            values = tf.cast(seen[:, first : first + length], tf.float32)
            shift = tf.abs((index - distance) // CHANNELS % 64 - column)
            return values, (index >= distance) & (shift < 32)  # not across the border

        left, left_exists = earlier(SAME_CHANNEL_OF_PREVIOUS_PIXEL)
        reference = tf.where(left_exists, left, 128.0)
        if ROW in self.distances:
            above, above_exists = earlier(ROW)
            reference = tf.where(~left_exists & above_exists, above, reference)
        differences = []
        for distance in self.distances:
            values, exists = earlier(distance)
            differences.append(tf.where(exists, (values - reference) / UNIT, 0.0))
        channel = tf.one_hot(index % CHANNELS, CHANNELS)[..., tf.newaxis]
        differences = channel * tf.stack(differences, -1)[:, :, tf.newaxis]
        width = CHANNELS * len(self.distances)
        return reference, tf.reshape(differences, (-1, length, width))

    def get_config(self):
        return {
            **super().get_config(),
            "distances": self.distances,
            "output_dim": self.output_dim,
        }


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelHead(keras.layers.Layer):
    """The parameters of a likelihood, and beside them the reference of its means.

    Args:
        likelihood: "mixture" or "categorical".
        num_mixtures: int, logistics of the mixture.
        **kwargs: arguments of `keras.layers.Layer`, such as `name`.
    """

    def __init__(self, likelihood, num_mixtures, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.likelihood_name = likelihood
        self.num_mixtures = num_mixtures
        self.likelihood = likelihoods.get(likelihood, num_mixtures)

    def build(self, input_shape):
        width = self.likelihood.num_outputs
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], width),
            initializer=keras.initializers.RandomNormal(stddev=0.01),
        )
        self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros")

    def call(self, x, reference):
        outputs = keras.ops.add(keras.ops.matmul(x, self.kernel), self.bias)
        return tf.concat([outputs, reference[..., tf.newaxis]], -1)

    def next_token_logits(self, outputs):
        return self.likelihood.logits(outputs[..., :-1], outputs[..., -1])

    def compute_output_shape(self, input_shape, reference_shape=None):
        return (*input_shape[:-1], self.likelihood.num_outputs + 1)

    def get_config(self):
        return {
            **super().get_config(),
            "likelihood": self.likelihood_name,
            "num_mixtures": self.num_mixtures,
        }
