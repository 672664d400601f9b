"""Two likelihoods of the next colour value, from the outputs of the model.

Both turn a vector of outputs into a distribution over the values 0..255 of one
sub-pixel (one colour channel of one pixel) and share one interface:

- `num_outputs`: width of the model's last `Dense`;
- `log_prob(outputs, targets, reference)`: natural logarithm of the probability;
- `logits(outputs, reference)`: the same for all 256 values, for sampling.

Everything is computed in float32, whatever the dtype of the outputs.
"""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

NUM_VALUES = 256
# One output moves the mean by this many colour values, so that outputs of order one,
# which is what a fresh network gives, reach neighbouring colours but not all of them.
MEAN_UNIT = 32.0
MEAN_LIMIT = 256.0  # means stay within reference +- this, which covers 0..255
SMALLEST_SCALE, LARGEST_SCALE = 0.05, 128.0  # of a logistic, in colour values
LADDER = 0.6, 38.0  # smallest and largest scale of the components at zero outputs


def get(name, num_mixtures=5):
    """Returns the likelihood called `name`.

    Args:
        name: `"categorical"` (the paper's) or `"mixture"`.
        num_mixtures: int K, components of the mixture.

    Returns:
        A `Categorical` or a `LogisticMixture`.
    """
    if name == "categorical":
        return Categorical()
    if name == "mixture":
        return LogisticMixture(num_mixtures)
    raise ValueError(
        f"likelihood must be 'categorical' or 'mixture'. Received: likelihood={name!r}"
    )


@dataclasses.dataclass(frozen=True)
class Categorical:
    """One logit for each of the 256 values, as in the paper."""

    num_outputs: int = NUM_VALUES

    def log_prob(self, outputs, targets, reference=None):
        """Log-probability of `targets` `[...]` given `outputs` `[..., 256]`."""
        del reference  # a categorical has no mean that could be relative to something
        outputs = tf.cast(outputs, tf.float32)
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(targets, tf.int32), logits=outputs
        )

    def logits(self, outputs, reference=None):
        """Log-probabilities `[..., 256]` of all values."""
        del reference
        return tf.nn.log_softmax(tf.cast(outputs, tf.float32))


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

    def __init__(self, num_mixtures=5):
        if not isinstance(num_mixtures, int) or num_mixtures < 1:
            raise ValueError(
                "num_mixtures must be a positive int. "
                f"Received: num_mixtures={num_mixtures!r}"
            )
        self.num_mixtures = num_mixtures
        self.num_outputs = 3 * num_mixtures
        if num_mixtures == 1:
            ladder = [math.sqrt(LADDER[0] * LADDER[1])]
        else:
            ladder = np.geomspace(*LADDER, num_mixtures)
        self._log_ladder = np.log(ladder).astype("float32")

    def distribution(self, outputs, reference):
        """The mixture as a distribution of tensorflow-probability.

        Args:
            outputs: float tensor `[..., 3 * K]`: weights' logits, then offsets of the
                means in units of `MEAN_UNIT`, then logarithms of scales relative to
                the ladder.
            reference: tensor `[...]` of colours in 0..255 that the means start from.

        Returns:
            `tfp.distributions.MixtureSameFamily` with batch shape `[...]`.
        """
        # Not at the top of the file: it loads a second Keras and takes seconds.
        import tensorflow_probability as tfp

        tfd = tfp.distributions
        outputs = tf.cast(outputs, tf.float32)
        weights, offsets, log_scales = tf.split(outputs, 3, axis=-1)
        limit = MEAN_LIMIT / MEAN_UNIT
        means = tf.cast(reference, tf.float32)[
            ..., tf.newaxis
        ] + MEAN_UNIT * tf.clip_by_value(offsets, -limit, limit)
        scales = tf.exp(
            tf.clip_by_value(
                self._log_ladder + log_scales,
                math.log(SMALLEST_SCALE),
                math.log(LARGEST_SCALE),
            )
        )
        # QuantizedDistribution rounds up, hence the shift by half a colour value.
        shifted = tfd.TransformedDistribution(
            tfd.Logistic(means, scales), tfp.bijectors.Shift(tf.constant(-0.5))
        )
        values = tfd.QuantizedDistribution(
            shifted, low=0.0, high=tf.constant(NUM_VALUES - 1.0)
        )
        return tfd.MixtureSameFamily(tfd.Categorical(logits=weights), values)

    def log_prob(self, outputs, targets, reference=None):
        """Log-probability of `targets`.

        Args:
            outputs: float tensor `[..., 3 * K]`.
            targets: tensor `[...]` of whole numbers 0..255.
            reference: tensor `[...]` of colours; usually the same channel of the
                previous pixel.

        Returns:
            float32 tensor `[...]`.
        """
        self._check(reference)
        targets = tf.cast(targets, tf.float32)
        return self.distribution(outputs, reference).log_prob(targets)

    def logits(self, outputs, reference=None):
        """Log-probabilities of all values.

        Args:
            outputs: float tensor `[..., 3 * K]`.
            reference: tensor `[...]`.

        Returns:
            float32 tensor `[..., 256]`, normalized.
        """
        self._check(reference)
        outputs = tf.expand_dims(outputs, -2)
        reference = tf.expand_dims(reference, -1)
        values = tf.range(NUM_VALUES, dtype=tf.float32)
        return self.distribution(outputs, reference).log_prob(values)

    def _check(self, reference):
        if reference is None:
            raise ValueError(
                "reference must be given for likelihood='mixture': the colour that the "
                "means are relative to. Received: reference=None"
            )


@keras.saving.register_keras_serializable(package="imagenet64")
class BitsPerDimension(keras.losses.Loss):
    """The bits that one sub-pixel costs, averaged: the loss and what is reported.

    Args:
        likelihood: "mixture" or "categorical".
        num_mixtures: int, logistics of the mixture.
    """

    def __init__(self, likelihood, num_mixtures, name="bits_per_dim", **kwargs):
        super().__init__(name=name, **kwargs)
        self.likelihood = likelihood
        self.num_mixtures = num_mixtures

    def call(self, y_true, y_pred):
        likelihood = get(self.likelihood, self.num_mixtures)
        reference = None
        if y_pred.shape[-1] == likelihood.num_outputs + 1:
            y_pred, reference = y_pred[..., :-1], y_pred[..., -1]
        log_prob = likelihood.log_prob(y_pred, y_true, reference)
        return -log_prob / tf.math.log(2.0)

    def get_config(self):
        return {
            **super().get_config(),
            "likelihood": self.likelihood,
            "num_mixtures": self.num_mixtures,
        }
