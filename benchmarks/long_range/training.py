"""Trains one model on one task, with or without a warm-up on the task's inputs."""

import dataclasses
import functools
import time

import numpy as np
import tensorflow as tf

from benchmarks import machine
from benchmarks.learning.training import learn
from benchmarks.long_range import baselines, models, rows

# What part of the tokens is hidden, as in BERT (arXiv 1810.04805, section 3.1).
HIDDEN_PART = 0.15
# Sequences that are counted.
NUM_COUNTED = 4000


def train(task, row, seed, learning_rate, steps, warm_up_steps, evaluations):
    """Trains a model.

    Args:
        task: `tasks.LongTask`.
        row: a name of `rows.ROWS`.
        seed: int.
        learning_rate: float, of the task and of the warm-up.
        steps: int.
        warm_up_steps: int, steps before in which hidden tokens are restored; 0 for
            none. The model has learned nothing of the task then.
        evaluations: int.

    Returns:
        Dict of numbers about the run, as of `benchmarks.learning.training.train`;
        `"seconds"` and `"curve"` are without the warm-up, whose own are
        `"warm_up_seconds"`, and its last loss in bits `"warm_up_bits"`.
    """
    began = time.perf_counter()
    if row in rows.NO_MODELS:
        made = counted(task, row, seed)
    else:
        made = trained(
            task, row, seed, learning_rate, steps, warm_up_steps, evaluations
        )
    return {
        "task": task.name,
        "row": row,
        "seed": seed,
        "learning_rate": learning_rate,
        "steps": steps,
        "warm_up_steps": warm_up_steps,
        "measure": task.measure,
        "window": task.window,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "machine": machine.name(),
        "tensorflow": tf.__version__,
        **made,
        "seconds_in_all": round(time.perf_counter() - began, 1),
    }


def trained(task, row, seed, learning_rate, steps, warm_up_steps, evaluations):
    """What only training tells."""
    encoder = models.make_encoder(task, row, seed)
    model = models.make_model(task, encoder)
    random = np.random.default_rng([seed, 7])
    warm_up = {}
    if warm_up_steps:
        restorer = models.TokenReader(encoder, task.padded, task.vocabulary_size)
        ((_, seconds, _, bits),) = learn(
            restorer, hiding(task), learning_rate, warm_up_steps, 1, random, decay=True
        )
        warm_up = {"warm_up_seconds": seconds, "warm_up_bits": bits}
    curve = learn(model, task, learning_rate, steps, evaluations, random, decay=True)
    return {
        "parameters": models.count_parameters(model),
        "result": curve[-1][3],
        "seconds": curve[-1][1],
        **warm_up,
        "curve": curve,
    }


def counted(task, row, seed):
    """The same without a model: what counting tokens, or the first one, tells."""
    options = task.draw, task.held_out(), NUM_COUNTED, task.vocabulary_size
    if row == rows.FIRST:
        result = baselines.first_token_accuracy(*options, seed=seed)
    elif task.num_classes:
        result = baselines.histogram_accuracy(*options, pairs=task.pairs, seed=seed)
    else:
        result = baselines.pair_bits(*options, seed=seed)
    return {
        "window": None,
        "threads": 1,
        "parameters": None,
        "result": round(result, 4),
        "seconds": 0.0,
        "curve": [],
    }


def hiding(task):
    """The task of restoring hidden tokens of a task's own inputs."""
    return dataclasses.replace(
        task,
        draw=functools.partial(draw_hidden, task),
        held_out=functools.partial(held_out_hidden, task),
        measure="bits",
    )


def draw_hidden(task, random, batch_size):
    return hidden(task, random, task.draw(random, batch_size)[0])


def held_out_hidden(task):
    inputs, _, _ = task.held_out()[0]
    return [hidden(task, np.random.default_rng(54321), inputs)]


def hidden(task, random, tokens):
    """Some tokens exchanged for one that says so, and asked for."""
    weights = (random.random(tokens.shape) < HIDDEN_PART).astype(np.float32)
    if task.padded:
        weights *= tokens != models.PADDING
    inputs = np.where(weights > 0, task.vocabulary_size, tokens).astype(np.int32)
    return inputs, tokens, weights
