"""What is trained here with exact attention, to be converted."""

import dataclasses
import time

import numpy as np
import tensorflow as tf

from benchmarks.learning import models, plan, real_tasks, rows
from benchmarks.learning.measuring import measuring
from benchmarks.learning.tasks import Task, with_rotary
from benchmarks.learning.training import step_of

SEED = 0
EVALUATED_EVERY = 50


@dataclasses.dataclass(frozen=True)
class Case:
    """A model to train and convert.

    Attributes:
        name: str, that of its files.
        task: `Task`; its window is the exact window of what is converted.
        key_dim: int, the size of a head.
        num_batches, batch_size: ints, of the data for `calibrate` and
            `transfer_attention`, that of training drawn anew.
        first: `Task` of shorter sequences that are trained on before, or `None`.
    """

    name: str
    task: Task
    key_dim: int
    num_batches: int
    batch_size: int
    first: Task | None = None

    @property
    def data(self):
        """A data set of tokens, without what is to be said of them."""
        random = np.random.default_rng([SEED, 8])
        tokens = [
            self.task.draw(random, self.batch_size)[0] for _ in range(self.num_batches)
        ]
        data = tf.data.Dataset.from_tensor_slices(np.concatenate(tokens))
        return data.batch(self.batch_size)

    @property
    def tasks(self):
        """What is trained on, in this order."""
        return [task for task in (self.first, self.task) if task]


def cases():
    """Every case by its name."""
    [recall] = [task for task, _ in plan.core() if task.name == "recall 512"]
    options = dict(window=64, learning_rate=1.5e-3)
    short = real_tasks.sources(512, steps=1000, batch_size=8, **options)
    long = real_tasks.sources(2048, steps=200, batch_size=2, **options)
    short, long = with_rotary(short), with_rotary(long)
    found = (
        Case("recall", recall, key_dim=16, num_batches=64, batch_size=4),
        Case("bytes", long, key_dim=32, num_batches=64, batch_size=1, first=short),
    )
    return {case.name: case for case in found}


def exact_model(case, folder):
    """The model with exact attention, trained unless its weights are in a folder."""
    path = folder / f"{case.name}.weights.h5"
    model = models.make_model(case.task, rows.EXACT, case.key_dim, SEED)
    if path.exists():
        model.load_weights(path)
        return model
    random = np.random.default_rng([SEED, 7])
    for task in case.tasks:
        train(model, task, random)
    model.save_weights(path)
    return model


def train(model, task, random):
    """Takes the steps of a task, or as many as it takes to do well enough."""
    step, measure = step_of(model, task.learning_rate, True), measuring(model, task)
    start = time.perf_counter()
    for index in range(1, task.steps + 1):
        step(index, *batch(task, random))
        if index % EVALUATED_EVERY == 0:
            value, seconds = measure(), time.perf_counter() - start
            print(
                f"{task.name}, exact, {index} of {task.steps} steps, {seconds:.0f} s: "
                f"{task.measure} {value:.4f}",
                flush=True,
            )
            if task.enough is not None and value >= task.enough:
                break


def batch(task, random):
    """One to train on: inputs, targets and weights, as `Task.draw` has them."""
    return [tf.constant(x) for x in task.draw(random, task.batch_size)]
