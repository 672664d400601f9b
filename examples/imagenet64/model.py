"""The image model: a `PerformerLM` over the 12,288 sub-pixels of an image.

Sub-pixel i is row, column and channel i // 192, i // 3 % 64, i % 3. The model reads the
sequence shifted right by one (a 0 first), so that its output i is the distribution of
sub-pixel i given all before it.
"""

import keras
import tensorflow as tf

import keras_performer
from examples.imagenet64 import likelihoods

CHANNELS = 3
ROW = 64 * CHANNELS
LENGTH = 64 * ROW
# Which earlier sub-pixels the model sees beside the state of its attention, as
# distances in the sequence: the last pixels, and those around the one above.
SAME_CHANNEL_OF_PREVIOUS_PIXEL = CHANNELS
PREVIOUS = tuple(range(1, 12))
ABOVE = tuple(range(ROW - 8, ROW + 9)) + (2 * ROW - 3, 2 * ROW, 2 * ROW + 3)
UNIT = 32.0  # colours are divided by this, so that differences are of order one


def make(config):
    """The model that a `Config` describes."""
    options = dict(
        vocabulary_size=likelihoods.NUM_VALUES,
        max_length=LENGTH,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        intermediate_dim=config.intermediate_dim,
        dropout=config.dropout,
        feature_map=config.feature_map,
        num_random_features=config.num_random_features,
        position_shape=(64, 64, CHANNELS),
        recompute=config.recompute,
        seed=config.seed,
    )
    if config.likelihood == "categorical" and not config.neighbours:
        return keras_performer.PerformerLM(**options)  # the paper's
    return PixelPerformer(
        config.likelihood,
        config.num_mixtures,
        PREVIOUS + ABOVE if config.neighbours else PREVIOUS[:CHANNELS],
        **options,
    )


def shift(images):
    """Images `(B, 64, 64, 3)` to inputs and targets `(B, 12288)`."""
    targets = tf.reshape(tf.cast(images, tf.int32), (-1, LENGTH))
    return tf.pad(targets[:, :-1], [[0, 0], [1, 0]]), targets


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelPerformer(keras_performer.PerformerLM):
    """A `PerformerLM` that reads colours as numbers, relative to a nearby colour.

    Instead of an embedded token each position gets the differences between earlier
    sub-pixels and a reference, the same channel of the previous pixel (of the pixel
    above, in the first column). A linear prediction from these differences, which
    `fit_prediction` fits once, is added to the reference, and the likelihood's means
    are relative to the sum.

    Args:
        likelihood: "mixture" or "categorical".
        num_mixtures: int, logistics of the mixture.
        distances: tuple of ints, which earlier sub-pixels are read.
        **kwargs: arguments of `PerformerLM`.
    """

    extra_dtypes = tf.float32  # of the reference, which goes round the blocks

    def __init__(self, likelihood, num_mixtures, distances, **kwargs):
        self.likelihood_name = likelihood
        self.num_mixtures = num_mixtures
        self.distances = tuple(distances)
        self.likelihood = likelihoods.get(likelihood, num_mixtures)
        super().__init__(**kwargs)

    def make_embedding(self):
        return keras.layers.Dense(
            self.hidden_dim, dtype=self.dtype_policy, name="embedding"
        )

    def make_head(self):
        return keras.layers.Dense(
            self.likelihood.num_outputs,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            dtype="float32",
            name="parameters",
        )

    def build(self, input_shape):
        # float32 throughout: colours up to 255 in steps of 1
        self.prediction = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer="zeros",
            trainable=False,
            dtype="float32",
            name="prediction",
        )
        shape = (*input_shape, CHANNELS * len(self.distances))
        self.prediction.build(shape)
        self.embedding.build(shape)
        for layer in (self.positions, *self.blocks, self.norm, self.head):
            layer.build((*input_shape, self.hidden_dim))

    def fit_prediction(self, images):
        """Fits the linear prediction to training images by least squares.

        Args:
            images: uint8 tensor `(n, 64, 64, 3)`.
        """
        inputs, targets = shift(images)
        start = self.embedding_state(inputs.shape[0])
        seen = tf.concat([start["seen"], inputs], 1)
        reference, x = self._look_back(inputs, seen, start["position"])
        y = (tf.cast(targets, tf.float32) - reference) / UNIT
        x, y = tf.reshape(x, (-1, x.shape[-1])), tf.reshape(y, (-1, 1))
        kernel = tf.linalg.lstsq(x, y, l2_regularizer=1.0)
        self.prediction.kernel.assign(kernel)

    def embedding_state(self, batch_size):
        # the inputs before these that the largest distance reaches back to
        seen = tf.zeros((batch_size, max(self.distances) - 1), tf.int32)
        return {**super().embedding_state(batch_size), "seen": seen}

    def embed(self, inputs, state=None):
        inputs = tf.cast(inputs, tf.int32)
        start = self.embedding_state(tf.shape(inputs)[0]) if state is None else state
        seen = tf.concat([start["seen"], inputs], 1)
        reference, differences = self._look_back(inputs, seen, start["position"])
        reference += UNIT * self.prediction(differences)[..., 0]
        x = self.embedding(differences) + self.embed_positions(inputs, state)
        last = seen[:, -start["seen"].shape[1] :]
        return x, reference, {**self.next_positions(inputs, state), "seen": last}

    def read_out(self, x, reference):
        outputs = super().read_out(x, reference)
        return tf.concat([outputs, reference[..., tf.newaxis]], -1)

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

    def next_token_logits(self, outputs):
        return self.likelihood.logits(outputs[..., :-1], outputs[..., -1])

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.likelihood.num_outputs + 1)

    def get_config(self):
        return {
            **super().get_config(),
            "likelihood": self.likelihood_name,
            "num_mixtures": self.num_mixtures,
            "distances": self.distances,
        }
