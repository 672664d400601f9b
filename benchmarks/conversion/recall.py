"""What a model that recalls far tokens keeps of that when it is converted.

    python -m benchmarks.conversion.recall

Trains a small model with exact attention on associative recall over 512 tokens, of
which a window of 64 alone knows nothing, and asks it with other attention in the place
of its own: that of the controls, converted, calibrated, after `transfer_attention`, and
after some steps of ordinary training from each of these. Writes `recall.md` and
`recall.png` into `--output`; the weights of the exact model and what was found for each
feature map stay there for the next time.
"""

import argparse
import datetime
import functools
import json
import pathlib
import time
import typing

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks import machine
from benchmarks.learning import models, plan, rows, swap
from benchmarks.learning.measuring import answering
from benchmarks.learning.training import step_of
from benchmarks.tables import table
from keras_performer import (
    PerformerAttention,
    calibrate,
    convert_to_performer,
    transfer_attention,
)

[TASK] = [task for task, _ in plan.core() if task.name == "recall 512"]
KEY_DIM, SEED = 16, 0
FEATURE_MAPS = "softmax", "taylor"
EVALUATED_EVERY = 50
# What `calibrate` and `transfer_attention` are given.
NUM_BATCHES, BATCH_SIZE = 64, 4
LEARNED = "layers that learned only"
# A gain with which far keys have no weight.
NOTHING = -100.0


class Result(typing.NamedTuple):
    """How well a model answers held-out questions.

    Attributes:
        name: str.
        accuracy, bits: floats.
        steps, further_steps: ints, of transfer, and then of ordinary training.
        seconds: float, what the last part of the way there took.
    """

    name: str
    accuracy: float
    bits: float
    seconds: float = 0.0
    steps: int = 0
    further_steps: int = 0


def main(argv=None):
    """Reads the command line, measures what is missing, and writes a report."""
    options = make_parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    exact = exact_model(options.output / "recall.weights.h5")
    parts = {
        "controls": lambda: [asked(*control) for control in controls(exact)],
        **{
            feature_map: functools.partial(of_features, exact, feature_map, options)
            for feature_map in options.feature_maps
        },
    }
    results = []
    for name, measure in parts.items():
        path = options.output / f"recall-{name}.json"
        if not path.exists():
            path.write_text(json.dumps(measure()))
        results += [Result(*row) for row in json.loads(path.read_text())]
    draw(results, options.output / "recall.png")
    text = page(results)
    (options.output / "recall.md").write_text(text + "\n")
    print(text)


def exact_model(path):
    """The model with exact attention, trained unless its weights are there."""
    model = models.make_model(TASK, rows.EXACT, KEY_DIM, SEED)
    if path.exists():
        model.load_weights(path)
        return model
    step, answers = step_of(model, TASK.learning_rate, True), answering(model, TASK)
    random = np.random.default_rng([SEED, 7])
    for index in range(1, TASK.steps + 1):
        step(index, *batch(random, TASK.batch_size))
        if index % EVALUATED_EVERY == 0:
            accuracy = answers()["accuracy"]
            print(f"exact, {index} steps: {accuracy:.4f}", flush=True)
            if accuracy >= TASK.enough:
                break
    model.save_weights(path)
    return model


def batch(random, batch_size):
    return [tf.constant(x) for x in TASK.draw(random, batch_size)]


def controls(exact):
    """Names and models: the exact one, and what any other must be better than."""
    yield rows.EXACT, exact
    mean, window = (
        models.make_model(TASK, row, KEY_DIM, SEED) for row in (rows.EXACT, rows.WINDOW)
    )
    for other in mean, window:
        swap.copy_weights(exact, other)
    for block in mean.blocks:  # all logits are 0
        for weight in block.attention.query_dense.weights:
            weight.assign(tf.zeros_like(weight))
    yield "mean of V", mean
    yield "window alone", window


def of_features(exact, feature_map, options):
    """All `Result` with the features of a map."""
    results = []
    for *given, trains in converted(exact, feature_map, options.steps):
        results.append(asked(*given))
        if trains:
            first, model = results[-1], given[1]
            results += further_trained(first, model, options.further_steps)
    return results


def converted(exact, feature_map, num_steps):
    """Names, models, steps, seconds, and whether to train further."""
    options = dict(feature_map=feature_map, seed=SEED)
    if feature_map == "taylor":
        options["num_random_features"] = None
    alone, _ = convert_to_performer(exact, exact_window=None, **options)
    yield feature_map, alone, 0, 0.0, False
    name, options["exact_window"] = f"window + {feature_map}", TASK.window
    both, _ = convert_to_performer(exact, **options)
    random = np.random.default_rng([SEED, 8])
    tokens = [TASK.draw(random, BATCH_SIZE)[0] for _ in range(NUM_BATCHES)]
    tokens = np.concatenate(tokens)
    data = tf.data.Dataset.from_tensor_slices(tokens).batch(BATCH_SIZE)
    start = time.perf_counter()
    calibrated, report = calibrate(both, data, verbose=0)
    seconds = time.perf_counter() - start
    print(report)
    start = time.perf_counter()
    new, report = transfer_attention(both, exact, data, num_steps=num_steps, verbose=0)
    seconds_of_transfer = time.perf_counter() - start
    print(report, flush=True)
    yield f"{name}, calibrated", calibrated, 0, seconds, True
    yield f"{name}, transferred", new, num_steps, seconds_of_transfer, True
    yield name, both, 0, 0.0, True
    if 0 < len(report.learned) < len(report.layers):
        some, _ = convert_to_performer(exact, layers=report.learned, **options)
        yield f"{name}, {LEARNED}", some, 0, 0.0, False
        yield f"window alone, {LEARNED}", without_far_keys(some), 0, 0.0, False


def without_far_keys(model):
    """The control of a model with windows: what they alone keep. It is changed."""
    for block in model.blocks:
        if isinstance(block.attention, PerformerAttention):
            gain = block.attention.log_gain
            gain.assign(tf.fill(gain.shape, NOTHING))
    return model


def asked(name, model, steps=0, seconds=0.0):
    """The `Result` of a model."""
    result = Result(name, **answering(model, TASK)(), seconds=seconds, steps=steps)
    print(f"{name}: {result.accuracy:.4f}, {result.bits:.3f} bits", flush=True)
    return result


def further_trained(first, model, further_steps):
    """Yields a `Result` after each number of steps of ordinary training.

    Args:
        first: `Result` of the model.
        model: it is trained.
        further_steps: list of ints.
    """
    step, answers = step_of(model, TASK.learning_rate, False), answering(model, TASK)
    random = np.random.default_rng([SEED, 9])
    start = time.perf_counter()
    for index in range(1, max(further_steps) + 1):
        step(index, *batch(random, TASK.batch_size))
        if index in further_steps:
            seconds = time.perf_counter() - start
            yield first._replace(**answers(), further_steps=index, seconds=seconds)


def draw(results, path):
    """Loss against steps of ordinary training, from each way to begin."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    trained = {result.name for result in results if result.further_steps}
    for result in results:
        if result.name in (rows.EXACT, "window alone"):
            axes.axhline(result.bits, color="#7a7a7a", linestyle="--", linewidth=1)
            axes.annotate(result.name, (0, result.bits), va="bottom", fontsize=8)
    for name in sorted(trained):
        points = [(x.further_steps, x.bits) for x in results if x.name == name]
        axes.plot(*zip(*points), "o-", ms=4, label=name)
    axes.set(xlabel="steps of ordinary training", ylabel="bits")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def page(results):
    """All that is written."""
    lines = [
        [
            result.name,
            result.steps,
            result.further_steps,
            f"{result.accuracy:.4f}",
            f"{result.bits:.3f}",
            f"{result.seconds:.0f}",
        ]
        for result in results
    ]
    columns = "attention", "transfer", "training", "accuracy", "bits", "seconds"
    return f"""\
# What a model that recalls keeps

Multi-query associative recall over {TASK.length} tokens: how a model of two blocks
answers held-out questions with exact attention, and with other attention in its place.
The exact window is {TASK.window}. "transfer" counts the steps of `transfer_attention`
({NUM_BATCHES} batches of {BATCH_SIZE}, without labels), "training" those of all weights
with labels, after it. Seconds are those of a clock, of what the last of these took, or
calibration, beside other work. "{LEARNED}": the layer that the report of the transfer
advises to keep exact is exact.

{machine.name()}, TensorFlow {tf.__version__}, Keras {keras.__version__}; seed {SEED};
written {datetime.date.today()} by `python -m benchmarks.conversion.recall`.

{table(columns, lines)}"""


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conversion.recall",
        description=__doc__.splitlines()[0],
    )
    parser.add_argument(
        "--feature-maps", nargs="+", choices=FEATURE_MAPS, default=FEATURE_MAPS
    )
    parser.add_argument("--steps", type=int, default=200, help="of the transfer")
    parser.add_argument(
        "--further-steps", nargs="+", type=int, default=[10, 20, 40], help="of training"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/conversion")
    )
    return parser


if __name__ == "__main__":
    main()
