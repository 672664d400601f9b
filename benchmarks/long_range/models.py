"""The models: one encoder, its attention exchanged, and what reads it."""

import keras
import tensorflow as tf

import keras_performer
from benchmarks.learning.models import PairsOfTokens, count_parameters
from benchmarks.long_range import rows

PADDING = 0
# The feed-forward network beside exact attention is so many times as wide as the model,
WIDTHS = 4
# and others at least so many.
NARROWEST = 8


class Reader(keras.Model):
    """What reads an encoder: `(B, L)` tokens to what a subclass makes of them.

    Args:
        encoder: model from tokens and a mask to `(B, L, dim)`.
        padded: bool, whether token 0 is padding.
        num_logits: int.
    """

    def __init__(self, encoder, padded, num_logits, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.padded = padded
        self.logits = keras.layers.Dense(num_logits)

    def encode(self, inputs, training):
        mask = inputs != PADDING if self.padded else None
        return self.encoder(inputs, mask=mask, training=training), mask


class Classifier(Reader):
    """Logits `(B, 1, num_classes)` from the mean over a sequence.

    Means over thousands of tokens hardly differ from sequence to sequence: batch
    normalization makes much of what differs, without which they learn very slowly.

    With `pairs` of `(2 * B, L)` tokens: the second half are what the first belongs to,
    or not, as in arXiv 2011.04006.
    """

    def __init__(self, encoder, padded, num_classes, pairs=False, **kwargs):
        super().__init__(encoder, padded, num_classes, **kwargs)
        self.pairs = pairs
        width = encoder.hidden_dim
        # the mean of the last some batches, as a run has only hundreds
        self.norm = keras.layers.BatchNormalization(momentum=0.9)
        self.norm.build((None, width))
        self.logits.build((None, 4 * width if pairs else width))
        self.built = True

    def call(self, inputs, training=None):
        x, mask = self.encode(inputs, training)
        if mask is None:
            x = tf.reduce_mean(x, 1)
        else:
            weights = tf.cast(mask, x.dtype)[..., tf.newaxis]
            x = tf.reduce_sum(x * weights, 1) / tf.reduce_sum(weights, 1)
        x = self.norm(x, training=training)
        if self.pairs:
            one, other = tf.split(x, 2)
            x = tf.concat([one, other, one - other, one * other], -1)
        return self.logits(x)[:, tf.newaxis]


class TokenReader(Reader):
    """Logits `(B, L, vocabulary_size)` of a token for each place."""

    def __init__(self, encoder, padded, vocabulary_size, **kwargs):
        super().__init__(encoder, padded, vocabulary_size, **kwargs)
        self.logits.build((None, None, encoder.hidden_dim))
        self.built = True

    def call(self, inputs, training=None):
        x, _ = self.encode(inputs, training)
        return self.logits(x)


def make_model(task, encoder):
    """What a task asks for: a class of a sequence, or a token for each place."""
    if task.num_classes:
        return Classifier(encoder, task.padded, task.num_classes, task.pairs)
    return TokenReader(encoder, task.padded, task.vocabulary_size)


def make_encoder(task, row, seed):
    """An encoder with the attention of a row.

    All have as many parameters as that with exact attention, as nearly as the width of
    their feed-forward networks allows: what attention has more, those have less.
    """
    wanted = parameters_with(task, rows.EXACT, WIDTHS * task.hidden_dim)
    narrow = parameters_with(task, row, NARROWEST)
    # a unit has a weight from and to each channel of its block, and a bias
    of_unit = task.num_layers * (2 * task.hidden_dim + 1)
    width = NARROWEST + round((wanted - narrow) / of_unit)
    return encoder_of_width(task, row, max(width, NARROWEST), seed)


def parameters_with(task, row, width):
    return count_parameters(encoder_of_width(task, row, width, seed=0))


def encoder_of_width(task, row, width, seed):
    """An encoder whose feed-forward networks have so many units."""
    keras.utils.set_random_seed(seed)
    num_heads = task.hidden_dim // task.key_dim
    causal = not task.num_classes
    rotates = task.position_embedding == "rotary"
    attention = rows.attention(
        row, task.length, task.window, num_heads, task.key_dim, causal, rotates
    )
    ids = task.vocabulary_size + 1  # one for a token that is to be restored
    embedding = PairsOfTokens(ids, task.hidden_dim) if task.joins_tokens else None
    return keras_performer.PerformerLM(
        ids,
        task.length,
        task.num_layers,
        num_heads,
        task.hidden_dim,
        intermediate_dim=width,
        causal=causal,
        attention=attention,
        embedding=embedding,
        head=keras.layers.Identity(),
        position_shape=task.grid,
        # what has no queries and keys to rotate learns its places
        position_embedding=None if rotates else "learned",
        seed=seed,
    )
