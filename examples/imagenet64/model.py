"""The image model: a `PerformerLM` over the 12,288 sub-pixels of an image.

The model reads the sequence shifted right by one (a 0 first), so that output i is the
distribution of sub-pixel i given all earlier ones. Sub-pixel i has row i // 192, column
i // 3 % 64 and channel i % 3.
"""

import keras
import tensorflow as tf

import keras_performer
from examples.imagenet64.likelihoods import NUM_VALUES, LogisticMixture
from keras_performer.layers import EmbeddingLayer, LocalAttention

SIDE = 64
CHANNELS = 3
ROW = SIDE * CHANNELS
LENGTH = SIDE * ROW
GREY = 128
UNIT = 64.0  # divides colours minus grey, so that they are of order one


def make(config):
    """Returns the model that a `Config` describes."""
    options = dict(
        vocabulary_size=NUM_VALUES,
        max_length=LENGTH,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        intermediate_dim=config.intermediate_dim,
        dropout=config.dropout,
        attention=config.attention,
        position_embedding=config.position_embedding,
        position_shape=(SIDE, SIDE, CHANNELS),
        recompute=config.recompute,
        seed=config.seed,
    )
    if config.attention == "performer":
        options |= dict(
            forget_gate=False,
            feature_map=config.feature_map,
            num_random_features=config.num_random_features,
            exact_window=config.exact_window,
        )
    elif config.attention == "local":
        is_rotary = config.position_embedding == "rotary"
        options["attention"] = LocalAttention(
            config.num_heads,
            config.hidden_dim // config.num_heads,
            dropout=config.dropout,
            sliding_window=config.exact_window,
            causal=True,
            rotary=options["position_shape"] if is_rotary else None,
        )
    if config.likelihood == "mixture":  # else embedding and logits, as in the paper
        options["embedding"] = PixelEmbedding(
            config.hidden_dim, config.num_last, config.start_of_row, name="embedding"
        )
        options["head"] = PixelHead(config.num_mixtures, name="parameters")
    return keras_performer.PerformerLM(**options)


def shift(images):
    """Converts images `(B, rows, 64, 3)` to inputs and targets `(B, rows * 192)`."""
    targets = tf.reshape(tf.cast(images, tf.int32), (-1, images.shape[1] * ROW))
    return tf.pad(targets[:, :-1], [[0, 0], [1, 0]]), targets


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelEmbedding(EmbeddingLayer):
    """Reads the last few sub-pixels as numbers; weights differ by channel.

    The model sees earlier sub-pixels, such as the row above, by attention only. The
    head gets a reference, to which colours are relative: the same channel of the pixel
    to the left; in the first column grey, or the same channel of the pixel above.

    Args:
        output_dim: int, width of the model.
        num_last: int, number of sub-pixels to read, at least 3, which are one pixel.
        start_of_row: "grey" or "above", the reference in the first column. (Above the
            first row all is grey.)
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor of colours `(B, T)`.
        state: dict of `"position"`, the position of the first input, `(B,)`, and
            `"seen"`, the last inputs before this position.
    """

    extra_dtypes = tf.float32  # of the reference

    def __init__(self, output_dim, num_last=CHANNELS, start_of_row="grey", **kwargs):
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.num_last = num_last
        self.start_of_row = start_of_row

    @property
    def reach(self):
        """Distance to the furthest sub-pixel that the layer needs."""
        return ROW if self.start_of_row == "above" else self.num_last

    def build(self, input_shape):
        # for each channel: the colours that are read, and a constant
        self.kernel = self.add_weight(
            name="kernel",
            shape=(CHANNELS * (self.num_last + 1), self.output_dim),
            initializer=keras.initializers.RandomNormal(stddev=0.5),
        )

    def empty_state(self, batch_size):
        seen = tf.fill((batch_size, self.reach - 1), GREY)
        return {"position": tf.zeros((batch_size,), tf.int32), "seen": seen}

    def call(self, inputs, state):
        length = tf.shape(inputs)[1]
        index = state["position"][:, tf.newaxis] + tf.range(length)
        seen = tf.concat([state["seen"], tf.cast(inputs, tf.int32)], 1)

        def back(distance):
            first = self.reach - distance
            return seen[:, first : first + length]

        last = [back(distance) for distance in range(self.num_last, 0, -1)]
        x = (tf.cast(tf.stack(last, -1), tf.float32) - GREY) / UNIT
        x = tf.pad(x, [[0, 0], [0, 0], [0, 1]], constant_values=1.0)
        channel = tf.one_hot(index % CHANNELS, CHANNELS)[..., tf.newaxis]
        x = channel * x[:, :, tf.newaxis]
        x = tf.reshape(x, (-1, length, CHANNELS * (self.num_last + 1)))
        x = keras.ops.matmul(tf.cast(x, self.compute_dtype), self.kernel)
        to_the_left = index // CHANNELS % SIDE > 0
        start = back(ROW) if self.start_of_row == "above" else GREY
        reference = tf.where(to_the_left, back(CHANNELS), start)
        state = {"position": state["position"] + length, "seen": seen[:, length:]}
        return x, tf.cast(reference, tf.float32), state

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "num_last": self.num_last,
            "start_of_row": self.start_of_row,
        }


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelHead(keras.layers.Layer):
    """Computes the parameters of a `LogisticMixture`, and appends the reference.

    Args:
        num_mixtures: int, logistics of the mixture.
        **kwargs: arguments of `keras.layers.Layer`, such as `name`.
    """

    def __init__(self, num_mixtures, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.num_mixtures = num_mixtures
        self.likelihood = LogisticMixture(num_mixtures)

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
        return {**super().get_config(), "num_mixtures": self.num_mixtures}
