"""Other attention in the place of that of a trained model."""

import time

import tensorflow as tf

from benchmarks.conversion.small.cases import SEED
from benchmarks.learning import models, rows, swap
from keras_performer import (
    PerformerAttention,
    calibrate,
    convert_to_performer,
    transfer_attention,
)

MEAN, WINDOW = "mean of V", "window alone"
LEARNED = "layers that learned only"
# A gain with which far keys have no weight.
NOTHING = -100.0


def controls(case, exact, num_steps):
    """What others must be better than, and the exact model; yields as `converted`."""
    same, mean, window = (
        models.make_model(case.task, row, case.key_dim, SEED)
        for row in (rows.EXACT, rows.EXACT, rows.WINDOW)
    )
    for other in same, mean, window:
        swap.copy_weights(exact, other)
    for block in mean.blocks:  # all logits are 0
        for weight in block.attention.query_dense.weights:
            weight.assign(tf.zeros_like(weight))
    yield rows.EXACT, same, 0, 0.0, True
    yield MEAN, mean, 0, 0.0, False
    yield WINDOW, window, 0, 0.0, True
    near, _ = convert_to_performer(exact, exact_window=case.task.window, seed=SEED)
    start = time.perf_counter()
    near, _ = transfer_attention(
        without_far_keys(near), exact, case.data, num_steps=num_steps, verbose=0
    )
    seconds = time.perf_counter() - start
    yield f"{WINDOW}, transferred", near, num_steps, seconds, True


def converted(case, exact, feature_map, num_steps):
    """Yields name, model, steps of transfer, seconds, and whether to train further."""
    options = dict(feature_map=feature_map, seed=SEED)
    alone, _ = convert_to_performer(exact, exact_window=None, **options)
    yield feature_map, alone, 0, 0.0, False
    name, options["exact_window"] = f"window + {feature_map}", case.task.window
    both, _ = convert_to_performer(exact, **options)
    data = case.data
    start = time.perf_counter()
    calibrated, report = calibrate(both, data, verbose=0)
    calibrating = time.perf_counter() - start
    print(report, flush=True)
    start = time.perf_counter()
    new, report = transfer_attention(
        calibrated, exact, data, num_steps=num_steps, verbose=0
    )
    transferring = time.perf_counter() - start
    print(report, flush=True)
    if 0 < len(report.learned) < len(report.layers):
        some, _ = convert_to_performer(exact, layers=report.learned, **options)
        yield f"{name}, {LEARNED}", some, 0, 0.0, False
        yield f"{WINDOW}, {LEARNED}", without_far_keys(some), 0, 0.0, False
    yield name, both, 0, 0.0, True
    yield f"{name}, calibrated", calibrated, 0, calibrating, True
    yield f"{name}, transferred", new, num_steps, transferring, True


def without_far_keys(model):
    """The control of a model with windows: what they alone keep. It is changed."""
    for block in model.blocks:
        if isinstance(block.attention, PerformerAttention):
            gain = block.attention.log_gain
            gain.assign(tf.fill(gain.shape, NOTHING))
    return model
