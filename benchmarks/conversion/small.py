"""Measures the accuracy that small models, trained here, keep after conversion.

    python -m benchmarks.conversion.small [--cases recall bytes] [--steps 200]
        [--feature-maps softmax taylor]

Trains models of two blocks with exact attention: one on 2,048 bytes of Python sources,
and one on associative recall over 512 tokens, which local attention with a window of 64
cannot solve. Then replaces the attention: by controls, and by linear attention that is
converted, calibrated, or trained by `transfer_attention` (`--steps`). Writes a page for
each model into `--output`, and keeps weights and results there for the next call.
"""

import datetime
import time
import typing

import keras
import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.learning import __main__ as learning
from benchmarks.learning import models, study, tasks
from benchmarks.learning.training import learn, summing
from benchmarks.tables import table
from keras_performer import (
    PerformerAttention,
    calibrate,
    convert_to_performer,
    transfer_attention,
)

SEED = 0
EVALUATED_EVERY = 50
FEATURE_MAPS = "softmax", "taylor"
CONTROLS, MEAN, WINDOW = "controls", "mean of V", "window alone"
LEARNED = "layers that learned only"
# A log-gain that gives far keys no weight.
NO_WEIGHT = -1000.0


def main(argv=None):
    more = dict(cases=(*CASES,), feature_maps=FEATURE_MAPS, steps=200)
    more |= dict(output=runner.RUNS / "conversion")
    choices = {"cases": CASES, "feature_maps": FEATURE_MAPS}
    options = runner.options(__doc__, argv, choices, **more)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        measure(CASES[name], options)


def measure(case, options):
    """Trains a case, measures results that are missing, and writes its page."""
    wanted = [
        {"task": case, "row": row, "steps": options.steps, "folder": options.output}
        for row in (CONTROLS, *options.feature_maps)
    ]
    path = options.output / "runs.jsonl"
    runs = study.complete(wanted, path, workers=0, function=replaced)
    found = [Result(*of) for run in runs for of in run["found"]]
    parts = page(case, found, options)
    print(runner.write_page(options.output, parts, f"{case.name}.md"))


def replaced(task, row, steps, folder):
    """Measures a `Case` with the controls, or with one feature map; returns a run."""
    exact, start = exact_model(task, folder), time.perf_counter()
    ways = controls if row == CONTROLS else converted
    found = [asked(task, *made) for made in ways(task, exact, row, steps)]
    return {
        "task": task.name,
        "row": row,
        "steps": steps,
        "seconds": time.perf_counter() - start,
        "result": found[-1].accuracy,
        "found": found,
    }


class Case(typing.NamedTuple):
    """A model to train and convert.

    The window of the task is the exact window of converted models. `calibrate` and
    `transfer_attention` take `num_batches` new batches of its training data. Training
    begins with the shorter sequences of `first`.
    """

    name: str
    task: tasks.Task
    key_dim: int
    num_batches: int
    batch_size: int
    first: tasks.Task | None = None

    @property
    def data(self):
        """A data set of tokens without labels."""
        random = np.random.default_rng([SEED, 8])
        tokens = [
            self.task.draw(random, self.batch_size)[0] for _ in range(self.num_batches)
        ]
        data = tf.data.Dataset.from_tensor_slices(np.concatenate(tokens))
        return data.batch(self.batch_size)


def bytes_of(length, **options):
    options |= dict(window=64, learning_rate=1.5e-3)
    return tasks.with_rotary(tasks.sources(length, **options))


CASES = {
    "recall": Case("recall", learning.recall_512(), 16, num_batches=64, batch_size=4),
    "bytes": Case(
        "bytes",
        bytes_of(2048, steps=200, batch_size=2),
        32,
        num_batches=64,
        batch_size=1,
        first=bytes_of(512, steps=1000, batch_size=8),
    ),
}


def exact_model(case, folder):
    """Returns the exact model; trains it unless its weights are in a folder."""
    path = folder / f"{case.name}.weights.h5"
    model = models.make_model(case.task, models.EXACT, case.key_dim, SEED)
    if path.exists():
        model.load_weights(path)
        return model
    random = np.random.default_rng([SEED, 7])
    for task in filter(None, (case.first, case.task)):
        evaluations = task.steps // EVALUATED_EVERY
        curve = learn(model, task, task.learning_rate, task.steps, evaluations, random)
        print(task.name, curve, flush=True)
    model.save_weights(path)
    return model


def controls(case, exact, _, num_steps):
    """Yields the exact model and the baselines, as `converted` does."""
    same, mean, window = (
        models.make_model(case.task, row, case.key_dim, SEED)
        for row in (models.EXACT, models.EXACT, models.WINDOW)
    )
    for other in same, mean, window:
        other.set_weights(exact.get_weights())
    for block in mean.blocks:  # makes all logits 0
        for weight in block.attention.query_dense.weights:
            weight.assign(tf.zeros_like(weight))
    yield models.EXACT, same, 0, 0.0
    yield MEAN, mean, 0, 0.0
    yield WINDOW, window, 0, 0.0
    near, _ = convert_to_performer(exact, exact_window=case.task.window, seed=SEED)
    near, _, seconds = transferred(without_far_keys(near), exact, case.data, num_steps)
    yield f"{WINDOW}, transferred", near, num_steps, seconds


def converted(case, exact, feature_map, num_steps):
    """Yields name, model, steps of transfer, and seconds."""
    options = dict(feature_map=feature_map, seed=SEED)
    alone, _ = convert_to_performer(exact, exact_window=None, **options)
    yield feature_map, alone, 0, 0.0
    name, options["exact_window"] = f"window + {feature_map}", case.task.window
    both, _ = convert_to_performer(exact, **options)
    data, start = case.data, time.perf_counter()
    calibrated, report = calibrate(both, data, verbose=0)
    calibrating = time.perf_counter() - start
    print(report, flush=True)
    new, report, transferring = transferred(both, exact, data, num_steps)
    print(report, flush=True)
    if 0 < len(report.learned) < len(report.layers):
        some, _ = convert_to_performer(exact, layers=report.learned, **options)
        yield f"{name}, {LEARNED}", some, 0, 0.0
        yield f"{WINDOW}, {LEARNED}", without_far_keys(some), 0, 0.0
    yield name, both, 0, 0.0
    yield f"{name}, calibrated", calibrated, 0, calibrating
    yield f"{name}, transferred", new, num_steps, transferring


def transferred(model, exact, data, num_steps):
    """Returns model and report of `transfer_attention`, and its seconds."""
    start = time.perf_counter()
    made = transfer_attention(model, exact, data, num_steps=num_steps, verbose=0)
    return *made, time.perf_counter() - start


def without_far_keys(model):
    """Takes all weight from far keys of the given model, as a control."""
    for block in model.blocks:
        if isinstance(block.attention, PerformerAttention):
            block.attention.assign_log_gain(NO_WEIGHT)
    return model


class Result(typing.NamedTuple):
    """Accuracy of a model on held-out questions, and bits of each held-out sequence.

    `steps` counts steps of transfer. `seconds` is the time of the last stage:
    calibration or transfer.
    """

    name: str
    accuracy: float
    bits: list[float]
    steps: int = 0
    seconds: float = 0.0


def asked(case, name, model, steps, seconds):
    """Measures and prints the `Result` of a model."""
    right, loss, questions = summing(model, case.task)()
    accuracy = right.sum() / questions.sum()
    result = Result(name, accuracy, list(loss / questions), steps, seconds)
    print(f"{name}: {accuracy:.4f}, {np.mean(result.bits):.3f} bits", flush=True)
    return result


def page(case, found, options):
    """Returns the parts of a case's page from its results, the exact model first."""
    exact, *_ = found
    lines = []
    for result in found:
        counts = result.name, result.steps
        means = f"{result.accuracy:.4f}", f"{np.mean(result.bits):.3f}"
        lost, compared = np.subtract(result.bits, exact.bits), ("", "")
        if result is not exact:
            error = lost.std(ddof=1) / np.sqrt(len(lost))
            compared = f"{lost.mean():+.3f}", f"{error:.3f}"
        lines.append([*counts, *means, *compared, f"{result.seconds:.0f}"])
    header = "attention", "transfer", "accuracy", "bits", "lost", "± s.e."
    task = case.task
    command = f"python -m benchmarks.conversion.small --cases {case.name} "
    command += f"--steps {options.steps}"
    return [
        f"""\
# {task.name.capitalize()}: what a trained model keeps

A model of two blocks, heads of {case.key_dim}, that learned with exact attention, over
{task.length:,} tokens: what it says of {len(exact.bits)} held-out sequences with that,
and with other attention in its place. The exact window is {task.window}. "transfer"
counts the steps of `transfer_attention`. It and `calibrate` start from the converted
model, and take {case.num_batches} batches of {case.batch_size}, without labels. Seconds
are those of a clock, of the transfer or the calibration, beside other work. Bits lost
are paired with the exact model, sequence by sequence.
"{LEARNED}": the layer that the report of the transfer advises to keep exact
is exact.

{runner.machine()}, TensorFlow {tf.__version__}, Keras {keras.__version__}; seed 0;
written {datetime.date.today()} by

    {command}""",
        table([*header, "seconds"], lines),
    ]


if __name__ == "__main__":
    main()
