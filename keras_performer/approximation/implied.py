"""Attention matrices of a trained model, exact and as features imply them."""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.approximation.calls import attention_calls, batches_of
from keras_performer.approximation.report import check_options, nothing_found


class ImpliedAttention(typing.NamedTuple):
    """Weights of one layer; what is not visible has 0.

    Attributes:
        layer: str, path of the layer.
        rows: int array `(rows,)`, the queries.
        exact: float32 array `(B, N, rows, S)`, the softmax.
        implied: float32 array `(B, N, rows, S)`, what the estimate gives to each key.
    """

    layer: str
    rows: np.ndarray
    exact: np.ndarray
    implied: np.ndarray

    def plot(self, head: int = 0, example: int = 0) -> typing.Any:
        """The weights of one head, exact and implied, side by side.

        Square roots, so that small weights show. Weights below 0, which only features
        with signs have, are drawn as 0.

        Args:
            head: int, which of the N heads.
            example: int, which of the batch.

        Returns:
            A `matplotlib.figure.Figure`, to be saved or shown.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name in zip(panels, ("exact", "implied")):
            weights = np.maximum(getattr(self, name)[example, head], 0) ** 0.5
            axes.imshow(weights, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            axes.set(title=name, xlabel="key")
        panels[0].set_ylabel("query")
        panels[0].set_yticks(range(len(self.rows)), self.rows)
        panels[0].locator_params(axis="y", nbins=8)
        figure.suptitle(f"{self.layer}, head {head}")
        return figure


def implied_attention(
    model: typing.Any,
    data: typing.Any,
    *,
    rows: Sequence[int] | None = None,
    **options: typing.Any,
) -> list[ImpliedAttention]:
    """The attention matrices of a model, beside those that linear attention implies.

    Linear attention never makes a matrix; this one is what it multiplies the values by.
    Memory is quadratic in the length: give it short sequences.

    Args:
        model: as in `approximation_report`.
        data: as in `approximation_report`; of a data set the first batch.
        rows: sequence of ints, indices of queries. Defaults to all.
        **options: as in `approximation_report`.

    Returns:
        A list of `ImpliedAttention`, one for each call of a layer, in the order of the
        calls.

    Raises:
        ValueError: as `approximation_report`, and for a row that is not there.

    Example:

    >>> import keras
    >>> layer = keras.layers.MultiHeadAttention(2, 4, name="attention")
    >>> x = start = keras.Input((None, 8))
    >>> model = keras.Model(start, layer(x, x))
    >>> data = keras.random.normal((1, 50, 8), seed=0)
    >>> found, = implied_attention(model, data, rows=[0, 49], seed=0)
    >>> found.implied.shape
    (1, 2, 2, 50)
    >>> print(found.implied.sum())  # each row sums to 1
    4.0
    """
    check_options(options)
    found = []

    def measure(layer, twin, query, key, value, inputs):
        chosen = _chosen(rows, query.shape[1])
        exact = ops.exact_scores(query, key, inputs.visible)
        implied = twin.scores(query, key, inputs.visible)
        both = (tf.gather(scores, chosen, axis=2) for scores in (exact, implied))
        weights = ImpliedAttention(layer.path, chosen, *(x.numpy() for x in both))
        found.append((layer, weights))

    left_out = attention_calls(model, batches_of(data, 1), options, measure)
    kept = [weights for layer, weights in found if layer not in left_out]
    if not kept:
        raise nothing_found(model, left_out)
    return kept


def _chosen(rows, length):
    if rows is None:
        return np.arange(length)
    wrong = [row for row in rows if not -length <= row < length]
    if wrong:
        raise ValueError(
            f"rows must be of the {length} queries. Received: rows with {wrong[0]}"
        )
    return np.arange(length)[list(rows)]
