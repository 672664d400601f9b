"""What takes the place of trained attention, controls first."""

import collections.abc
import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from keras_performer import calibrate, convert_to_performer, transfer_attention
from keras_performer.layers import LocalAttention

WINDOW = 17  # keys up to 16 places off
# Of `transfer_attention`, and how many sequences each sees.
TRANSFER_STEPS, AT_ONCE = 200, 2


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to change a trained model.

    Args:
        name: str.
        make: function of a `Pretrained` that returns a Keras model.
        random: bool, whether the model has random features that can be redrawn.
        fit: function of that model, the `Pretrained` and tokens `(R, T)` that returns
            the model fitted to these: for each family of sequences to those of others.
            `None` where nothing is fitted.
        further: bool, whether these are of `Pretrained.further`, too.
        beside: str, the name of a row that it is to be better than; or `None`.
    """

    name: str
    make: collections.abc.Callable
    random: bool = False
    fit: collections.abc.Callable | None = None
    further: bool = False
    beside: str | None = None


def exact(source):
    return source.model()


def mean_of_values(source):
    """All logits are 0: what is left of attention that knows nothing of the query."""
    model = source.model()
    for layer in model.layers:
        if isinstance(layer, keras.layers.MultiHeadAttention):
            for weight in layer.query_dense.weights:
                weight.assign(keras.ops.zeros_like(weight))
    return model


def window_alone(source):
    return source.model(functools.partial(LocalAttention, sliding_window=WINDOW))


def converted(feature_map, exact_window, source):
    """The trained model with random or Taylor features."""
    model, _ = convert_to_performer(
        source.model(),
        exact_window=exact_window,
        feature_map=feature_map,
        seed=0,
    )
    return model


def calibrated(model, source, tokens):
    # every second: of copies of a sequence, which differ by their masks
    model, _ = calibrate(model, tokens[::2], verbose=0)
    return model


def transferred(model, source, tokens):
    """Calibrated, then trained to attend as the trained model does."""
    tokens = np.random.default_rng(0).permutation(tokens)
    batches = tf.data.Dataset.from_tensor_slices(tokens)
    model, _ = transfer_attention(
        calibrated(model, source, tokens),
        source.model(),
        batches.batch(AT_ONCE, drop_remainder=True),
        num_steps=TRANSFER_STEPS,
        verbose=0,
    )
    return model


def performer(feature_map, exact_window=None, fit=None, further=False):
    name = f"window + {feature_map}" if exact_window else feature_map
    more = ", more data" if further else ""
    return Row(
        f"{name}, {fit.__name__}{more}" if fit else name,
        functools.partial(converted, feature_map, exact_window),
        random=feature_map != "taylor" and not fit,
        fit=fit,
        further=further,
        beside=f"{name}, calibrated{more}" if fit is transferred else None,
    )


EXACT = "exact"
ROWS = (
    Row(EXACT, exact),
    Row("mean of V", mean_of_values),
    Row("window alone", window_alone),
    performer("softmax"),
    performer("softmax", WINDOW),
    performer("softmax", WINDOW, calibrated),
)
# What `--full` adds.
FURTHER = (
    performer("favor+"),
    performer("taylor"),
    performer("favor+", WINDOW),
    performer("taylor", WINDOW),
    performer("softmax", WINDOW, transferred),
    performer("softmax", WINDOW, calibrated, further=True),
    performer("softmax", WINDOW, transferred, further=True),
)


def named(name):
    [row] = [row for row in ROWS + FURTHER if row.name == name]
    return row
