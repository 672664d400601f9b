"""What is printed, written and drawn."""

import datetime

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks import machine
from benchmarks.conversion.small import converted
from benchmarks.learning import rows
from benchmarks.tables import table

COLUMNS = "attention", "transfer", "training", "accuracy", "bits", "lost", "± s.e."

# Grey and broken lines for what the others stand beside.
CONTROLS = {
    rows.EXACT: dict(color="#000000", linestyle="--"),
    converted.WINDOW: dict(color="#888888", linestyle="--"),
    f"{converted.WINDOW}, transferred": dict(color="#888888", linestyle=":"),
}


def draw(found, path):
    """Loss against steps of ordinary training, from each way to begin.

    Args:
        found: list of `Result`, the exact model first.
        path: pathlib.Path of the picture.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    names = dict.fromkeys(result.name for result in found if result.further_steps)
    for name in names:
        points = [(x.further_steps, np.mean(x.bits)) for x in found if x.name == name]
        axes.plot(*zip(*points), "o-", ms=4, label=name, **CONTROLS.get(name, {}))
    axes.set(xlabel="steps of ordinary training", ylabel="bits")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def page(case, found, options):
    """All that is written of a case.

    Args:
        case: `Case`.
        found: list of `Result`, the exact model first.
        options: those of the command line that they were found with.
    """
    exact, *_ = found
    lines = [
        [
            result.name,
            result.steps,
            result.further_steps,
            f"{result.accuracy:.4f}",
            f"{np.mean(result.bits):.3f}",
            *_lost(result, exact),
            f"{result.seconds:.0f}",
        ]
        for result in found
    ]
    task = case.task
    numbers = " ".join(map(str, options.further_steps))
    command = f"python -m benchmarks.conversion.small --cases {case.name} "
    command += f"--steps {options.steps} --further-steps {numbers}"
    return f"""\
# {task.name.capitalize()}: what a trained model keeps

A model of two blocks, heads of {case.key_dim}, that learned with exact attention, over
{task.length:,} tokens: what it says of {len(exact.bits)} held-out sequences with that,
and with other attention in its place. The exact window is {task.window}. "transfer"
counts the steps of `transfer_attention` after `calibrate` ({case.num_batches} batches
of {case.batch_size}, without labels), "training" those of all weights with labels,
after it. Seconds are those of a clock, of what the last of these took, or calibration,
beside other work. Bits lost are paired with the exact model, sequence by sequence.
"{converted.LEARNED}": the layer that the report of the transfer advises to keep exact
is exact.

{machine.name()}, TensorFlow {tf.__version__}, Keras {keras.__version__}; seed 0;
written {datetime.date.today()} by

    {command}

{table([*COLUMNS, "seconds"], lines)}"""


def _lost(result, exact):
    if result is exact:
        return "", ""
    mean, standard_error = result.lost(exact)
    return f"{mean:+.3f}", f"{standard_error:.3f}"
