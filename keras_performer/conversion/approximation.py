"""Measures how well linear attention estimates the attention of a trained model."""

import functools
import math
import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.conversion.attention_like import attention_like
from keras_performer.conversion.calls import attention_calls, batches_of, nothing_found
from keras_performer.conversion.errors import ESTIMATES, HeadSums, add_errors
from keras_performer.conversion.report import as_text
from keras_performer.layers import PerformerAttention, arguments, call_inputs
from keras_performer.layers.choice import check_options

# An estimate fails if its error is more than this share of `HeadReport.mean`.
LOST_SHARE = 0.5
# A simpler estimate is advised unless the best has less than this share of its error.
WORTH_IT = 0.8
# Share of the weights inside `HeadReport.window_needed`.
SHARE_NEEDED = 0.9
# Names of the estimates in the advice, the simplest first.
ADVICE = {
    "window": "local attention",
    "features": "features alone",
    "both": "window and features",
}
MORE = "more features"
# Layer that models must have, for errors.
WANTED = "a layer of softmax attention that is called with data"


class HeadReport(typing.NamedTuple):
    """Results for one head of one layer, computed over the sampled queries.

    Attributes:
        layer: str, path of the layer.
        head: int.
        phi: float, mean of |x + y|^2 over queries x = q / H^(1/4) and keys
            y = k / H^(1/4). The variance of random features grows as exp(phi).
        spread: float, the standard deviation of a row's logits.
        near_share: float, share of the exact weights within the window; 0 without a
            window.
        window_needed: int, the smallest window that holds nine tenths of the weights.
        mean, window, features, both: floats, relative errors of the attended values if
            attention is replaced by: the average of all visible values (the
            no-attention baseline); local attention; random features only;
            `PerformerAttention(exact_window=...)`. nan without a window.
        doubled: float, the error `both` (without a window: `features`) with twice
            `num_random_features`; nan if features train or are not random.
        advice: str, what the errors suggest.
    """

    layer: str
    head: int
    phi: float
    spread: float
    near_share: float
    window_needed: int
    mean: float
    window: float
    features: float
    both: float
    doubled: float
    advice: str


class ApproximationReport(typing.NamedTuple):
    """Result of `approximation_report`; `print` shows it as a table.

    Attributes:
        heads: list of `HeadReport`.
        left_out: dict from paths of attention layers that could not be measured to the
            reasons.
    """

    heads: list[HeadReport]
    left_out: dict[str, str]

    def __str__(self):
        names = "layer", "head", "phi", "spread", "near share", "90% within"
        names += *ESTIMATES, "advice"
        rows = [
            (head.layer, *map(_cell, head[1:-1]), head.advice) for head in self.heads
        ]
        unseen = [f"{path}: not measured. {x}" for path, x in self.left_out.items()]
        return as_text(names, rows, range(1, len(names) - 1), unseen)

    def plot(self):
        """Plots the relative errors, layer by layer and head by head.

        Returns:
            A `matplotlib.figure.Figure`, to be saved or shown.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        for name in ESTIMATES:
            errors = [getattr(head, name) for head in self.heads]
            axes.plot(errors, "o-", label=name, linewidth=0.5, markersize=4)
        layers = [head.layer for head in self.heads]
        firsts = [i for i, layer in enumerate(layers) if layer not in layers[:i]]
        axes.set_xticks(firsts, [layers[i] for i in firsts], rotation=30, ha="right")
        for first in firsts[1:]:
            axes.axvline(first - 0.5, color="#cccccc", linewidth=0.8)
        axes.set(ylabel="relative error of the attended values", ylim=(0, None))
        axes.legend()
        return figure


def approximation_report(
    model: typing.Any,
    data: typing.Any,
    *,
    num_rows: int = 64,
    max_batches: int = 4,
    seed: int | None = None,
    **options: typing.Any,
) -> ApproximationReport:
    """Measures the error of linear attention in every head of a model.

    Each attention layer runs as usual. The report also computes `PerformerAttention`
    and its baselines from the same queries, keys and values, but only at `num_rows`
    queries. So it adds time that is linear in the length. Each layer gets exact inputs,
    so errors do not add up over layers.

    Args:
        model: a Keras model with `keras.layers.MultiHeadAttention`,
            `GroupQueryAttention`, `ExactAttention` or `PerformerAttention`, at any
            depth; or such a layer.
        data: inputs of the model: nested arrays, as one batch; or a `tf.data.Dataset`
            of batches, with or without targets.
        num_rows: int, number of queries in each sequence to compare with exact weights.
            Defaults to `64`.
        max_batches: int, the most batches to take from a dataset. Defaults to `4`.
        seed: int, as in `PerformerAttention`. Defaults to `None`, the seed of the
            layer.
        **options: further arguments of `PerformerAttention`, such as `exact_window` and
            `num_random_features`. Options you leave out come from the layer or have
            their defaults.

    Returns:
        An `ApproximationReport`.

    Raises:
        ValueError: if no attention layer can be measured, or an option is unknown.

    Example:

    >>> import keras
    >>> x = start = keras.Input((None, 8))
    >>> x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    >>> model = keras.Model(start, x)
    >>> data = keras.random.normal((2, 50, 8), seed=0)
    >>> report = approximation_report(model, data, exact_window=8, seed=0)
    >>> [(head.layer, head.head) for head in report.heads]
    [('attention', 0), ('attention', 1)]
    """
    arguments.positive_int("num_rows", num_rows)
    arguments.positive_int("max_batches", max_batches)
    options = _checked(approximation_report, model, options, seed)
    sums: dict = {}
    doubled = functools.cache(_with_twice_the_features)

    def measure(layer, twin, *inputs):
        of_layer = sums.setdefault(layer, HeadSums(twin.num_heads))
        add_errors(of_layer, twin, doubled(twin), *inputs, num_rows)

    batches = batches_of(data, max_batches)
    left_out = attention_calls(model, batches, options, measure)
    measured = [layer for layer in sums if layer not in left_out]
    if not measured:
        raise nothing_found(model, WANTED, left_out.values())
    return ApproximationReport(
        [head for layer in measured for head in _heads(layer, sums[layer])],
        {layer.path: reason for layer, reason in left_out.items()},
    )


def _checked(function, model, options, seed):
    """Checks a model and options, and returns the options with the seed if given."""
    call_inputs.check_model("model", model)
    check_options(function, options, [PerformerAttention])
    return options if seed is None else {**options, "seed": seed}


def _with_twice_the_features(twin):
    if twin.num_random_features is None or twin.feature_map.trainable:
        return None
    options = dict(num_random_features=2 * twin.num_random_features, seed=twin.seed)
    return attention_like(PerformerAttention, twin, **options)


def _heads(layer, sums):
    names = "phi", "spread", "near_share"
    columns = {name: sums.mean(name) for name in names}
    columns["window_needed"] = sums.window_with(SHARE_NEEDED)
    columns |= {name: sums.error(name) for name in ESTIMATES}
    for head in range(len(sums.squares)):
        numbers = {name: column[head].item() for name, column in columns.items()}
        yield HeadReport(layer.path, head, **numbers, advice=_advice(numbers))


def _advice(errors):
    """Returns the advice for a head: the simplest estimate close to the best."""
    found = {name: errors[name] for name in ADVICE if not math.isnan(errors[name])}
    if not found:
        return "nothing to attend to"
    best = min(found.values())
    doubled = errors["doubled"]
    if best > LOST_SHARE * errors["mean"]:
        return MORE if doubled <= LOST_SHARE * errors["mean"] else "keep it exact"
    name = next(name for name, x in found.items() if WORTH_IT * x <= best)
    more = name != "window" and doubled < WORTH_IT * best
    return f"{ADVICE[name]}; {MORE}" if more else ADVICE[name]


def _cell(number):
    if isinstance(number, int):
        return str(number)
    return "-" if math.isnan(number) else f"{number:.2f}"


# -- Attention matrices of a trained model: exact, and implied by features.


class ImpliedAttention(typing.NamedTuple):
    """Attention weights of one layer; 0 for keys that are not visible.

    Attributes:
        layer: str, path of the layer.
        rows: int array `(rows,)`, indices of the queries.
        exact: float32 array `(B, N, rows, S)`, the softmax weights.
        implied: float32 array `(B, N, rows, S)`, the estimated weights.
    """

    layer: str
    rows: np.ndarray
    exact: np.ndarray
    implied: np.ndarray

    def plot(self, head: int = 0, example: int = 0) -> typing.Any:
        """Plots the weights of one head, exact and implied, side by side.

        The plot shows square roots, which make small weights visible. It shows negative
        weights, which only signed features have, as 0.

        Args:
            head: int, index of the head. Defaults to `0`.
            example: int, index in the batch. Defaults to `0`.

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
    seed: int | None = None,
    **options: typing.Any,
) -> list[ImpliedAttention]:
    """Computes exact attention matrices, and the matrices that features imply.

    Linear attention never computes these matrices. Memory is quadratic in the length:
    use short sequences.

    Args:
        model: as in `approximation_report`.
        data: as in `approximation_report`; only the first batch of a dataset is used.
        rows: sequence of ints, indices of the queries. Defaults to `None`, all.
        seed: as in `approximation_report`. Defaults to `None`.
        **options: as in `approximation_report`.

    Returns:
        A list of `ImpliedAttention`, one for each call of a layer, in the order of the
        calls.

    Raises:
        ValueError: as in `approximation_report`, or if a row is out of range.

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
    options = _checked(implied_attention, model, options, seed)
    found, lengths = [], []

    def measure(layer, twin, query, key, value, inputs):
        exact = ops.exact_scores(query, key, inputs.visible)
        implied = twin.scores(query, key, inputs.visible)
        lengths.append(query.shape[1])
        chosen = _chosen(rows, query.shape[1])
        both = (tf.gather(scores, chosen, axis=2) for scores in (exact, implied))
        weights = ImpliedAttention(layer.path, chosen, *(x.numpy() for x in both))
        found.append((layer, weights))

    left_out = attention_calls(model, batches_of(data, 1), options, measure)
    for length in lengths:
        _chosen(rows, length)  # raises the error that `attention_calls` has caught
    kept = [weights for layer, weights in found if layer not in left_out]
    if not kept:
        raise nothing_found(model, WANTED, left_out.values())
    return kept


def _chosen(rows, length):
    if rows is None:
        return np.arange(length)
    wrong = [row for row in rows if not -length <= row < length]
    if wrong:
        raise ValueError(
            f"rows must be indices of the {length} queries. Received: rows with "
            f"{wrong[0]}"
        )
    return np.arange(length)[list(rows)]
