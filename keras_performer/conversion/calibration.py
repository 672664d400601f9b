"""Fits linear attention to the data of a model, without training.

A layer that is closer to exact attention need not make the model closer: errors of
layers add up, and some count more than others. So calibration also compares outputs of
the whole model. They decide only if the difference is clear, because only the user
knows which part of an output counts.
"""

import typing

import keras
import numpy as np

from keras_performer.conversion.calls import (
    attention_calls,
    batches_of,
    nothing_found,
    require_tokens,
)
from keras_performer.conversion.convert import attention_layers, convert_to_softmax
from keras_performer.conversion.converted import with_layers
from keras_performer.conversion.errors import relative_error
from keras_performer.conversion.fitting import Fit
from keras_performer.conversion.report import CalibrationReport
from keras_performer.layers import PerformerAttention, arguments, call_inputs, config
from keras_performer.ops.shapes import ceil_div

# Changes of the log-gains of all layers at once. `FURTHER_CHANGES` are tried if -1 is
# the best of `CHANGES`; -8 nearly leaves local attention.
CHANGES, FURTHER_CHANGES = (0.0, 1.0, -1.0), (-2.0, -4.0, -8.0)
# Another choice replaces the fitted model if its output has less than this share of the
# fitted model's error.
CLEARLY = 0.95
# Number of sequences to compare outputs on; each costs a pass for every change.
NUM_SEQUENCES = 4
# Layer that models must have, for errors.
WANTED = (
    "a PerformerAttention with the softmax kernel that is called with data: make one "
    "with `convert_to_performer`"
)


def calibrate(
    model: keras.layers.Layer,
    data: typing.Any,
    *,
    num_rows: int = 64,
    max_batches: int = 8,
    verbose: int = 1,
) -> tuple[keras.layers.Layer, CalibrationReport]:
    """Fits the linear attention of a model to data, without training.

    Softmax attention does not change if keys are shifted by a constant, or if queries
    and keys are multiplied by matrices that cancel; its estimates do change. For each
    `PerformerAttention`, this function tries:

    - keys of mean 0, or queries and keys of equal covariances, by changing weights (the
      key needs a bias to get mean 0);
    - Taylor features of the elements that vary most, at most as many as the layer has
      random features;
    - with an exact window, other gains of the heads.

    It keeps the choice closest to exact attention on the second half of the batches;
    the first half gives means and covariances (a single batch gives both). Then it
    compares the output of the whole model on some sequences. If another gain for all
    layers, or the original layers, are clearly closer to exact attention, it uses them
    instead.

    Args:
        model: a built model with `PerformerAttention` whose features estimate softmax,
            as from `convert_to_performer`. It stays unchanged.
        data: as in `approximation_report`. A few thousand tokens are enough; a layer
            with fewer than `key_dim` tokens stays as it is.
        num_rows: int, number of queries in each sequence to measure errors at. Defaults
            to `64`.
        max_batches: int, the most batches to take from a dataset. Defaults to `8`.
        verbose: 0 for silence, 1 for a progress bar of batches. Defaults to `1`.

    Returns:
        The new model and a `CalibrationReport`; `print` shows it as a table.

    Raises:
        ValueError: if no layer of the model can be fitted, or there are too few tokens
            for all of them.

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
    call_inputs.check_model("model", model)
    batches = batches_of(data, max_batches)
    attention = dict(attention_layers(model))
    linear = [x for x in attention if isinstance(x, PerformerAttention)]
    fitted = [x for x in linear if not attention[x]]
    if not fitted:
        raise nothing_found(model, WANTED, (attention[x] for x in linear))
    exact, _ = convert_to_softmax(model)
    pairs = config.pairs(model, exact, leaves=attention)
    fits = {copy: Fit(layer, num_rows) for layer, copy in pairs if layer in fitted}

    def count(layer, twin, query, key, value, inputs):
        if layer in fits:
            fits[layer].moments.add(query, key, inputs)

    half = len(batches) // 2
    first, others = batches[:half] or batches, batches[half:]
    progress = keras.utils.Progbar(
        len(first) + len(others), verbose=verbose, unit_name="batch"
    )

    def advancing(batches):
        for batch in batches:
            yield batch
            progress.add(1)

    left_out = attention_calls(exact, advancing(first), None, count)
    num_tokens = {x: (x.key_dim, fit.moments.num_tokens) for x, fit in fits.items()}
    where = "the first half of its batches"
    require_tokens(num_tokens, left_out, where, model, WANTED)
    fits = {layer: fit for layer, fit in fits.items() if layer not in left_out}

    def measure(layer, twin, *call):
        if layer in fits:
            fits[layer].measure(*call)

    left_out |= attention_calls(exact, advancing(others), None, measure)
    replacements, rows = {}, []
    for layer, fit in fits.items():
        if layer not in left_out:
            replacements[fit.layer], row = fit.result()
            rows.append(row)
    left_out |= {x: attention[x] for x in linear if attention[x]}
    fitted_model = with_layers(model, replacements)
    pairs = config.pairs(model, fitted_model, leaves=replacements)
    copies = [copy for layer, copy in pairs if layer in replacements]
    report = choose(exact, model, fitted_model, copies, others)
    if not report.fitted:
        fitted_model = with_layers(model, {})
        rows = [fits[layer].as_it_was() for layer in fits if layer not in left_out]
    why = {layer.path: reason for layer, reason in left_out.items()}
    return fitted_model, report._replace(layers=rows, left_out=why)


# -- Joint choice for all layers: original or fitted, with a change of log-gains.


def choose(exact, as_it_was, fitted, layers, batches):
    """Chooses the model closest to the exact one; sets gains of the fitted model.

    `layers` are the layers of the fitted model whose gains may change. At most
    `NUM_SEQUENCES` sequences of the batches are used, or one of each. Returns a
    `CalibrationReport` without layers.
    """
    layers = [layer for layer in layers if layer.log_gain is not None]
    gains = [layer.log_gain.numpy() for layer in layers]

    def change_gains(change):
        for layer, gain in zip(layers, gains, strict=True):
            layer.assign_log_gain(gain + change)

    def errors_of(names):
        """Returns a dict of names, pairs `(is fitted, change)`, to relative errors."""
        of_each = max(NUM_SEQUENCES // len(batches), 1)
        of_exact, squares = 0.0, dict.fromkeys(names, 0.0)
        for batch in batches:  # one at a time: outputs may be large
            some = keras.tree.map_structure(
                lambda x: x[:: ceil_div(len(x), of_each)],  # spread over the batch
                batch,
            )
            wanted = _outputs(exact, some)
            of_exact += _sum_of_squares(wanted)
            for name in names:
                is_fitted, change = name
                change_gains(change)
                found = _outputs(fitted if is_fitted else as_it_was, some)
                differences = (x - y for x, y in zip(found, wanted, strict=True))
                squares[name] += _sum_of_squares(differences)
        return {x: float(relative_error(squares[x], of_exact)) for x in names}

    not_fitted = False, 0.0
    changes = CHANGES if layers else (0.0,)
    errors = errors_of([not_fitted, *((True, change) for change in changes)])
    best = min(errors, key=errors.get)
    if best == (True, min(changes)) and layers:
        errors |= errors_of([(True, change) for change in FURTHER_CHANGES])
        best = min(errors, key=errors.get)
    if not errors[best] < CLEARLY * errors[True, 0.0]:  # also if all are 0, inf or nan
        best = True, 0.0
    change_gains(best[1])
    return CalibrationReport([], {}, errors[not_fitted], errors[best], *best)


def _outputs(model, batch):
    """Returns the float outputs of a model as float32 arrays."""
    return [
        np.asarray(x, np.float32)
        for x in keras.tree.flatten(model(batch, training=False))
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
    ]


def _sum_of_squares(arrays):
    return sum(np.sum(np.square(x), dtype=np.float64) for x in arrays)
