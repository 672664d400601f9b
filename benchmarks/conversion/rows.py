"""What takes the place of trained attention, controls first."""

import collections.abc
import dataclasses
import functools

import keras

from keras_performer import calibrate, convert_to_performer
from keras_performer.layers import LocalAttention

WINDOW = 17  # keys up to 16 places off
FEATURE_MAPS = ("favor+", "softmax", "taylor")


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to change a trained model.

    Args:
        name: str.
        make: function of a `Pretrained` and tokens `(R, T)` to calibrate on, `None`
            unless `calibrated`, that returns a Keras model.
        random: bool, whether the model has random features that can be redrawn.
        calibrated: bool, whether the model is made for each family of sequences anew,
            of tokens of the others.
    """

    name: str
    make: collections.abc.Callable
    random: bool = False
    calibrated: bool = False


def exact(source, tokens):
    return source.model()


def mean_of_values(source, tokens):
    """All logits are 0: what is left of attention that knows nothing of the query."""
    model = source.model()
    for layer in model.layers:
        if isinstance(layer, keras.layers.MultiHeadAttention):
            for weight in layer.query_dense.weights:
                weight.assign(keras.ops.zeros_like(weight))
    return model


def with_attention(attention, source, tokens):
    """The trained model with other attention of the same weights.

    Args:
        attention: as in `bert.make_model`.
    """
    return source.model(attention)


def converted(feature_map, exact_window, source, tokens):
    """The trained model with random or Taylor features; tokens fit them, if given."""
    model, _ = convert_to_performer(
        source.model(),
        exact_window=exact_window,
        feature_map=feature_map,
        num_random_features=None if feature_map == "taylor" else 256,
        seed=0,
    )
    if tokens is not None:
        model, _ = calibrate(model, tokens, verbose=0)
    return model


def performer(feature_map, exact_window=None, calibrated=False):
    name = f"window + {feature_map}" if exact_window else feature_map
    return Row(
        f"{name}, calibrated" if calibrated else name,
        functools.partial(converted, feature_map, exact_window),
        random=feature_map != "taylor" and not calibrated,
        calibrated=calibrated,
    )


EXACT = "exact"
_window = functools.partial(LocalAttention, sliding_window=WINDOW)
ROWS = (
    Row(EXACT, exact),
    Row("mean of V", mean_of_values),
    Row("window alone", functools.partial(with_attention, _window)),
    *(performer(feature_map) for feature_map in FEATURE_MAPS),
    *(performer(feature_map, WINDOW) for feature_map in FEATURE_MAPS),
    performer("softmax", WINDOW, calibrated=True),
)
