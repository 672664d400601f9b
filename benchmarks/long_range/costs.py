"""Measures a training step of the small models: tokens a second, and memory.

As in `fit` on a CPU, layers compile themselves, and the whole step is not compiled.
"""

import itertools

import numpy as np
import tensorflow as tf

from benchmarks import runner, worker
from benchmarks.learning import models, times
from benchmarks.learning.study import KEY_DIM
from benchmarks.learning.tasks import Task
from benchmarks.tables import NOTHING, table

LENGTHS = 1024, 4096, 16384
WINDOW = 64
VOCABULARY_SIZE = 256
STEPS = 5
# Rows whose memory grows with the square of the length.
QUADRATIC = models.EXACT, "Sinkhorn", "Synthesizer", "gMLP"
# Steps that might need more bytes are not run.
LARGEST = 8e9
ABOUT = f"""\
A training step of the model of two blocks of 64 units, head size 16, one sequence,
as in `fit` on a CPU, where layers compile themselves, on one thread; here all have the
same feed-forward networks, and the parameters that come of it. MiB are those of the
process at its peak above what it had when all was compiled: of short sequences less, as
they find room that compiling left. Where there is "{NOTHING}" more than 8 GB would be
needed: not run."""


def complete(names, path):
    """Measures rows, and writes a JSON file after each."""
    costs = runner.read(path)
    for row in names:
        costs[row] = {}
        for length in LENGTHS:
            costs[row][length] = measured(row, length, costs[row])
            print(row, length, costs[row][length], flush=True)
        costs[row]["machine"] = runner.machine()
        costs[row]["tensorflow"] = tf.__version__
        runner.save(path, costs)


def measured(row, length, shorter):
    """Measures tokens a second and bytes of a training step.

    Speed and memory have separate processes, as giving memory back takes time. Returns
    `None` if the step might need too much memory.
    """
    last = list(shorter.values())[-1] if shorter else {"bytes": 0}
    grows = 16 if row in QUADRATIC else 4
    if last is None or grows * last["bytes"] > LARGEST:
        return None
    case = {"row": row, "length": length}
    (seconds,) = runner.results(seconds_of_step, [case], workers=1)
    taken = runner.in_new_process(bytes_of_steps, row, length, start=start)
    return {"tokens_a_second": round(length / seconds), "bytes": taken}


def seconds_of_step(row, length):
    same = task(length)
    return times.of_step(made(same, row), same, STEPS, jit_compile=False)


def start():
    runner.use_one_thread()
    runner.give_back()


def bytes_of_steps(row, length):
    """Returns the rise of the peak after compilation."""
    same = task(length)
    steps = times.of_steps(made(same, row), same, jit_compile=False)

    def train(num_steps):
        return list(itertools.islice(steps, num_steps))

    train(times.FIRST_STEPS)
    before = worker.resident("VmRSS")
    return worker.peak_and_seconds(lambda: train(STEPS), before)[0]


def made(task, row):
    """Makes a model with the feed-forward width of exact attention, for any row.

    Training equalizes parameters instead. Here, an attention with weights for thousands
    of positions would leave almost no feed-forward network, and seem too cheap.
    """
    return models.make_model(task, row, KEY_DIM, seed=0, width=4 * task.hidden_dim)


def task(length):
    """Makes a task: one class for random tokens, with the same window at any length."""

    def draw(random, batch_size):
        tokens = random.integers(VOCABULARY_SIZE, size=(batch_size, length))
        ones = np.ones((batch_size, 1))
        return tokens.astype("int32"), 0 * ones.astype("int32"), ones.astype("float32")

    return Task(
        "costs",
        length,
        WINDOW,
        VOCABULARY_SIZE,
        draw=draw,
        held_out=draw,  # nothing is measured
        num_classes=10,
        measure="accuracy",
        hidden_dim=64,
        has_reader=True,
        steps=STEPS,
        batch_size=1,
        learning_rate=1e-3,
    )


def section(path):
    """Returns parts of a page: tokens a second and memory of a training step."""
    costs = runner.read(path)
    if not costs:
        return []
    lengths = sorted(
        {int(n) for of_row in costs.values() for n in of_row if n.isdigit()}
    )
    lines = []
    for row, of_row in costs.items():
        cells = [of_row.get(str(length)) for length in lengths]
        speeds = [NOTHING if c is None else f"{c['tokens_a_second']:,}" for c in cells]
        sizes = [NOTHING if c is None else f"{c['bytes'] / 2**20:,.0f}" for c in cells]
        lines.append([row, *speeds, *sizes])
    header = ["attention", *(f"{n:,} tokens" for n in lengths)]
    header += [f"{n:,}: MiB" for n in lengths]
    return ["## Tokens a second, and memory", ABOUT, table(header, lines)]
