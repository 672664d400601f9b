"""Estimates of attention fitted to the data that a model is for, without training."""

import typing

import keras
import numpy as np
import tensorflow as tf

from keras_performer import feature_maps, ops
from keras_performer.approximation.calls import attention_calls, batches_of
from keras_performer.approximation.errors import HeadSums, add_error
from keras_performer.conversion import places
from keras_performer.conversion.convert import (
    attention_layers,
    convert_to_softmax,
    with_layers,
)
from keras_performer.conversion.moments import Moments
from keras_performer.conversion.report import CalibratedLayer, CalibrationReport
from keras_performer.layers import PerformerAttention, arguments
from keras_performer.layers.attention_like import attention_like
from keras_performer.layers.far_gain import SPEED

# What is added to the logarithm of far weights, tried for each head.
LOG_GAINS = -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0
# Of a part of that error something else is kept, so that noise changes nothing.
BETTER = 0.98


def calibrate(
    model: keras.layers.Layer,
    data: typing.Any,
    *,
    num_rows: int = 64,
    max_batches: int = 8,
    verbose: int = 1,
) -> tuple[keras.layers.Layer, CalibrationReport]:
    """A copy of a model whose linear attention is fitted to data, without training.

    Softmax attention does not change when keys are moved by a constant, or queries and
    keys are multiplied by matrices that cancel; its estimates do. So each layer of
    `PerformerAttention` is given, by its weights: keys of mean 0, or queries and keys
    of equal covariances (if it has biases, as the mean moves into that of the key);
    Taylor features of the elements that vary most, as many as it has random features
    at the most; and gains of its heads, with an exact window. What is kept is what
    comes nearest to exact attention, on the second half of the batches, where there are
    two: the first half gives means and covariances. Each layer is fitted to the queries
    and keys of the model with exact attention.

    Args:
        model: a built model with `PerformerAttention` of the softmax kernel, as from
            `convert_to_performer`. It stays as it is.
        data: as in `approximation_report`. A few thousand tokens suffice; at least
            `key_dim` are needed.
        num_rows: int, at how many queries of each sequence errors are measured.
        max_batches: int, the most batches of a data set that are taken.
        verbose: 0 for silence, 1 for a progress bar of layers.

    Returns:
        The new model, and a `CalibrationReport`; `print` shows a table.

    Raises:
        ValueError: for a model without a layer that can be fitted, and too few tokens.

    Example:

    >>> import keras
    >>> from keras_performer import convert_to_performer
    >>> x = start = keras.Input((50, 8))
    >>> x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    >>> model = keras.Model(start, x)
    >>> performer, _ = convert_to_performer(model, exact_window=8, seed=0)
    >>> data = keras.random.normal((4, 50, 8), seed=0)
    >>> fitted, report = calibrate(performer, data, verbose=0)
    >>> report.layers[0].after <= report.layers[0].before
    True
    """
    arguments.positive_int("num_rows", num_rows)
    arguments.positive_int("max_batches", max_batches)
    batches = batches_of(data, max_batches)
    attention = dict(attention_layers(model))
    linear = [x for x in attention if isinstance(x, PerformerAttention)]
    fitted = [x for x in linear if not attention[x]]
    if not fitted:
        raise _nothing_to_fit(attention[x] for x in linear)
    exact, _ = convert_to_softmax(model)
    together = places.pairs(model, exact, leaves=attention)
    of_exact = {copy: layer for layer, copy in together if layer in fitted}
    half = len(batches) // 2
    moments: dict = {}

    def count(layer, twin, query, key, value, inputs):
        if layer in of_exact:
            if layer not in moments:
                moments[layer] = Moments(key.shape[2], key.shape[3])
            moments[layer].add(query, key, inputs)

    left_out = attention_calls(exact, batches[:half] or batches, {}, count)
    _check(of_exact, moments, left_out)
    calls: dict = {layer: [] for layer in moments}

    def keep(layer, twin, *heads_and_inputs):
        if layer in calls:
            calls[layer].append(heads_and_inputs)

    attention_calls(exact, batches[half:], {}, keep)
    progress = keras.utils.Progbar(len(moments), verbose=verbose, unit_name="layer")
    instead, rows = {}, []
    for layer, of_layer in moments.items():
        old = of_exact[layer]
        instead[old], row = _fit(old, of_layer, calls.pop(layer), num_rows)
        rows.append(row)
        progress.add(1)
    left_out |= {x: attention[x] for x in linear if attention[x]}
    report = CalibrationReport(rows, {x.path: why for x, why in left_out.items()})
    return with_layers(model, instead), report


def _nothing_to_fit(reasons=()):
    return ValueError(
        "model must have PerformerAttention of the softmax kernel that is called with "
        f"data: see `convert_to_performer`. It has none. {' '.join(reasons)}".strip()
    )


def _check(of_exact, moments, left_out):
    if not moments:
        raise _nothing_to_fit(left_out.values())
    for layer, of_layer in moments.items():
        number = min(of_layer.queries.number, of_layer.keys.number)
        if number < of_exact[layer].key_dim:
            raise ValueError(
                f"data must have at least key_dim={of_exact[layer].key_dim} tokens for "
                f"{of_exact[layer].path}; a few thousand are better. It has {number}"
            )


class _Choice(typing.NamedTuple):
    """A way to estimate the attention of a layer."""

    basis_name: str
    basis: typing.Any
    feature_map: typing.Any
    kernel: typing.Any


def _fit(layer, moments, calls, num_rows):
    """A layer like `layer` that is fitted, and what the report says of it."""
    choices = list(_choices(layer, moments))
    gains = layer.log_gain_of_heads()

    def errors(choice, gains):
        sums = HeadSums(layer.num_heads)
        for query, key, value, inputs in calls:
            q, k = _in_basis(query, key, choice.basis)
            estimate = _estimate(layer, choice.kernel, gains, q, k, value, inputs)
            add_error(sums, "fitted", estimate, query, key, value, inputs, num_rows)
        # a head without output has no error; an estimate that overflows the largest
        found = np.nan_to_num(sums.error("fitted"), nan=np.inf)
        return np.where(sums.squares == 0, 0, found)

    found = [errors(choice, gains) for choice in choices]
    sizes = [np.sqrt(np.mean(of_heads**2)) for of_heads in found]
    best = int(np.argmin(sizes))
    if sizes[best] > BETTER * sizes[0]:
        best = 0
    choice, least = choices[best], found[best]
    if gains is not None:
        chosen = gains.numpy()
        for change in LOG_GAINS:
            of_heads = errors(choice, gains + change) if change else least
            better = of_heads < (BETTER if change else 1) * least
            chosen = np.where(better, gains.numpy() + change, chosen)
            least = np.where(better, of_heads, least)
        gains = chosen
    new = _with(layer, choice, gains)
    after = np.sqrt(np.mean(least**2))
    described = choice.basis_name, _name(choice.feature_map)
    return new, CalibratedLayer(layer.path, *described, float(sizes[0]), float(after))


def _choices(layer, moments):
    """What is tried, first what the layer is."""
    own, kernel = layer.feature_map, layer.kernel()
    bases = [("as it is", moments.as_it_is())]
    if layer.rotary is None and not layer.qk_norm:  # else nothing cancels
        if layer.use_bias:
            bases.append(("centred", moments.centred()))
        bases.append(("balanced", moments.balanced(centre=layer.use_bias)))
    for name, basis in bases:
        yield _Choice(name, basis, own, kernel)
        taylor = feature_maps.TaylorFeatures(_rank(kernel.num_features(layer.key_dim)))
        if not isinstance(own, feature_maps.TaylorFeatures):
            yield _Choice(name, basis, taylor, taylor.kernel(None))


def _rank(num_features):
    """The largest R whose 1 + R + R (R + 1) / 2 features are not more."""
    rank = 1
    while 1 + (rank + 1) + (rank + 1) * (rank + 2) // 2 <= num_features:
        rank += 1
    return rank


def _in_basis(query, key, basis):
    """Queries and keys in another `Basis`, float32."""
    of_queries, of_keys, mean = (tf.constant(x, tf.float32) for x in basis)
    group = query.shape[2] // key.shape[2]
    query = tf.einsum("btnh,nhg->btng", query, tf.repeat(of_queries, group, axis=0))
    return query, tf.einsum("bsnh,nhg->bsng", key - mean, of_keys)


def _estimate(layer, kernel, gains, query, key, value, inputs):
    if layer.exact_window is not None:
        window = layer.exact_window
        output, _ = ops.windowed_attention(
            query, key, value, kernel, window, gains, inputs.visible
        )
    elif inputs.visible.causal:
        output, _ = ops.causal_attention(query, key, value, kernel, inputs.visible)
    else:
        output = ops.bidirectional_attention(query, key, value, kernel, inputs.visible)
    return output


def _with(layer, choice, gains):
    """A `PerformerAttention` that computes the choice by its weights."""
    options = {}
    if choice.feature_map != layer.feature_map:
        options = dict(feature_map=choice.feature_map, num_random_features=None)
    new = attention_like(PerformerAttention, layer, **options)
    group = layer.num_heads // layer.num_key_value_heads
    of_queries = np.repeat(choice.basis.of_queries, group, axis=0)
    of_keys, mean = choice.basis.of_keys, choice.basis.mean
    for dense, matrix, moved in (
        (new.query_dense, of_queries, 0.0),
        (new.key_dense, of_keys, mean),
    ):
        kernel = np.asarray(dense.kernel, np.float64)
        dense.kernel.assign(np.einsum("...nh,nhg->...ng", kernel, matrix))
        if dense.bias is not None:
            bias = np.asarray(dense.bias, np.float64) - moved
            dense.bias.assign(np.einsum("nh,nhg->ng", bias, matrix))
    if gains is not None:
        new.log_gain.assign(gains / SPEED)
    return new


def _name(feature_map):
    if isinstance(feature_map, feature_maps.TaylorFeatures):
        rank = feature_map.rank
        return "taylor" if rank is None else f"taylor, rank {rank}"
    return type(feature_map).__name__
