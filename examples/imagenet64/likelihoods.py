"""Loss of the model, the likelihood of the next colour value.

All computations are in float32, whatever the dtype of the outputs.
"""

import math

import keras
import numpy as np
import tensorflow as tf

NUM_VALUES = 256
# An output of 1 moves the mean by this many colour values, so that outputs of order
# one, as from a new network, reach neighbouring colours but not all colours.
MEAN_UNIT = 32.0
MEAN_LIMIT = 256.0  # means stay within reference +- this, which covers 0..255
SMALLEST_SCALE, LARGEST_SCALE = 0.05, 128.0  # of a logistic, in colour values
LADDER = 0.6, 38.0  # smallest and largest scale of the components at zero outputs


class LogisticMixture:
    """A mixture of K logistics, discretized to 0..255 (PixelCNN++, arXiv 1701.05517).

    The probability of the value v is the mass that the mixture has between v - 1/2 and
    v + 1/2; the values 0 and 255 get the tails. Means are relative to a reference
    colour. With all outputs zero every mean is the reference and the scales form a
    ladder from sharp to wide, so an untrained model whose last layer starts near zero
    is already a sensible model of photographs.

    Args:
        num_mixtures: int K.
    """

    def __init__(self, num_mixtures):
        self.num_outputs = 3 * num_mixtures
        if num_mixtures == 1:
            ladder = [math.sqrt(LADDER[0] * LADDER[1])]
        else:
            ladder = np.geomspace(*LADDER, num_mixtures)
        self._log_ladder = np.log(ladder).astype("float32")

    def log_prob(self, outputs, targets, reference):
        """Computes the log-probability of `targets`.

        Args:
            outputs: float tensor `[..., 3 * K]`: logits of weights, then offsets of
                means in units of `MEAN_UNIT`, then logarithms of scales relative to
                the ladder.
            targets: tensor `[...]` of whole numbers 0..255.
            reference: tensor `[...]` of colours in 0..255 that the means start from;
                usually the same channel of the previous pixel.

        Returns:
            float32 tensor `[...]`.
        """
        # Imported here, as it loads a second Keras and takes seconds.
        import tensorflow_probability as tfp

        tfd = tfp.distributions
        outputs = tf.cast(outputs, tf.float32)
        weights, offsets, log_scales = tf.split(outputs, 3, axis=-1)
        limit = MEAN_LIMIT / MEAN_UNIT
        means = tf.cast(reference, tf.float32)[
            ..., tf.newaxis
        ] + MEAN_UNIT * tf.clip_by_value(offsets, -limit, limit)
        limits = math.log(SMALLEST_SCALE), math.log(LARGEST_SCALE)
        scales = tf.exp(tf.clip_by_value(self._log_ladder + log_scales, *limits))
        # QuantizedDistribution rounds up, hence the shift by half a colour value.
        shifted = tfd.TransformedDistribution(
            tfd.Logistic(means, scales), tfp.bijectors.Shift(tf.constant(-0.5))
        )
        values = tfd.QuantizedDistribution(
            shifted, low=0.0, high=tf.constant(NUM_VALUES - 1.0)
        )
        mixture = tfd.MixtureSameFamily(tfd.Categorical(logits=weights), values)
        return mixture.log_prob(tf.cast(targets, tf.float32))

    def logits(self, outputs, reference):
        """Returns normalized log-probabilities of all values, float32 `[..., 256]`."""
        values = tf.range(NUM_VALUES, dtype=tf.float32)
        return self.log_prob(
            tf.expand_dims(outputs, -2), values, tf.expand_dims(reference, -1)
        )


@keras.saving.register_keras_serializable(package="imagenet64")
class BitsPerDimension(keras.losses.Loss):
    """Average bits for one sub-pixel: the loss and the reported result.

    Args:
        likelihood: "mixture", where the last output is the reference; or "categorical",
            one logit for each value, as in the paper.
        num_mixtures: int, logistics of the mixture.
    """

    def __init__(self, likelihood, num_mixtures, name="bits_per_dim", **kwargs):
        super().__init__(name=name, **kwargs)
        self.likelihood = likelihood
        self.num_mixtures = num_mixtures

    def call(self, y_true, y_pred):
        if self.likelihood == "categorical":
            nats = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=tf.cast(y_true, tf.int32), logits=tf.cast(y_pred, tf.float32)
            )
        else:
            mixture = LogisticMixture(self.num_mixtures)
            nats = -mixture.log_prob(y_pred[..., :-1], y_true, y_pred[..., -1])
        return nats / tf.math.log(2.0)

    def get_config(self):
        return {
            **super().get_config(),
            "likelihood": self.likelihood,
            "num_mixtures": self.num_mixtures,
        }
