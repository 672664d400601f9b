"""Long documents are classified byte by byte: which of two tables stands first?

    python -m examples.documents               # some minutes on 2 cores
    python -m examples.documents --steps 20    # a minute, only to see that it runs

A document is 4,096 bytes: a part of a Python file, into which a drawing (SVG) and the
metrics of a font (AFM) are pasted somewhere, 1,024 bytes each, as matplotlib ships
them. Its class is which of the two comes first. Every byte is a token. Counts of bytes
do not depend on the order, nor do means of what tokens know of their neighbours: what
tells is what stood hundreds or thousands of bytes before, which causal attention says.
A quarter of the files of each kind is held out.

Beside the Performer stand a regression on the counts of the bytes, the same model
without attention and with a window alone, all with a convolution. Exact attention takes
too long here to be trained: its step is timed. Curves go to `runs/documents`.

RESULT
"""

import pathlib
import sysconfig
import time

import keras
import matplotlib
import numpy as np
from keras import layers
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention, PerformerBlock

LENGTH, PIECE = 4096, 1024  # bytes of a document, and of each table in it
AROUND = LENGTH - 2 * PIECE
SIZES = {"num_heads": 2, "key_dim": 16, "causal": True}
DIM = 32
BATCH = 8
EVALUATIONS = 5
ROWS = {
    "no attention": {"make": lambda: None, "color": "#8a8a8a"},
    "window alone": {
        "make": lambda: LocalAttention(**SIZES, sliding_window=64),
        "color": "#2f9e44",
    },
    "Performer": {
        "make": lambda: PerformerAttention(**SIZES, num_random_features=32, seed=0),
        "color": "#0b5cab",
    },
}


def main(steps: int = 120, output_dir: str = "runs/documents"):
    """Trains, prints and draws.

    Args:
        steps: optimizer steps of each model, rounded to a multiple of 5.
        output_dir: folder for `curves.png`.

    Returns:
        The accuracy of the regression; dict of those of models, after a fifth of the
        steps, two fifths and so on; and dict of the CPU seconds of a step.
    """
    steps = max(1, steps // EVALUATIONS) * EVALUATIONS
    random = np.random.default_rng(0)
    known, unknown = read_files()
    training = documents(known, BATCH * steps, random)
    test = documents(unknown, 120, random)
    counted = accuracy_of_counts(training, test)
    curves, seconds = {}, {}
    for label, row in ROWS.items():
        print(f"\n{label}: {steps} steps")
        model = make_model(row["make"](), steps)
        curves[label] = train(model, training, test)
        seconds[label] = seconds_of_a_step(model, training)
    model = make_model(ExactAttention(**SIZES), steps)
    seconds["exact attention"] = seconds_of_a_step(model, training)

    print(f"\n{'':20}accuracy  CPU seconds a step")
    print(f"{'counts of bytes':20}{counted:8.3f}")
    for label, value in seconds.items():
        accuracy = f"{curves[label][-1]:8.3f}" if label in curves else " " * 8
        print(f"{label:20}{accuracy}{value:10.2f}")
    path = pathlib.Path(output_dir) / "curves.png"
    draw(path, steps, curves)
    print(f"wrote {path}")
    return counted, curves, seconds


def read_files():
    """Bytes of Python files, drawings, fonts: to train on, and every fourth, held out.

    Each of both is three lists of files that are long enough.
    """
    data = pathlib.Path(matplotlib.get_data_path())
    training, held_out = [], []
    for folder, pattern, at_least in (
        (pathlib.Path(sysconfig.get_path("stdlib")), "*.py", AROUND),
        (data / "images", "*.svg", PIECE),
        (data / "fonts" / "afm", "*.afm", PIECE),
    ):
        read = [path.read_bytes() for path in sorted(folder.glob(pattern))]
        different = dict.fromkeys(x for x in read if len(x) >= at_least)
        files = [np.frombuffer(x, np.uint8) for x in different]
        held_out.append(files[::4])
        training.append([file for i, file in enumerate(files) if i % 4])
    return training, held_out


def documents(files, count, random):
    """Documents `(count, LENGTH)`, and 1 where the font comes first, else 0."""

    def cut(kind, size):
        file = files[kind][random.integers(len(files[kind]))]
        start = random.integers(len(file) - size, endpoint=True)
        return file[start : start + size]

    made, font_first = [], random.integers(2, size=count)
    for swapped in font_first:
        places = np.sort(random.integers(AROUND, size=2, endpoint=True))
        before, between, after = np.split(cut(0, AROUND), places)
        tables = [cut(1, PIECE), cut(2, PIECE)]
        first, second = tables[::-1] if swapped else tables
        made.append(np.concatenate([before, first, between, second, after]))
    return np.stack(made).astype("int32"), font_first


def accuracy_of_counts(training, test):
    """The accuracy of a regression on how often each byte is in a document."""
    counts = [
        np.stack([np.bincount(document, minlength=256) for document in documents])
        for documents, _ in (training, test)
    ]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
    return float(model.fit(counts[0], training[1]).score(counts[1], test[1]))


def make_model(attention, steps):
    """A block of a convolution, one of attention; 0.02 M parameters."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(256, DIM)(tokens)
    x = PerformerBlock(None, 2 * DIM, conv_kernel_size=4)(x)
    x = PerformerBlock(attention, 2 * DIM)(x)
    x = layers.GlobalAveragePooling1D()(x)
    # Means over 4,096 tokens are much alike: what differs is small before this.
    x = layers.BatchNormalization(momentum=0.9)(x)
    model = keras.Model(tokens, layers.Dense(2)(x))
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=5e-3, warmup_steps=min(10, steps)
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(model, training, test):
    """Fits; returns the accuracy on held-out files, five times in the run."""
    history = model.fit(
        *training,
        batch_size=BATCH,
        shuffle=False,  # so that all models see the same, in the same order
        epochs=EVALUATIONS,
        steps_per_epoch=len(training[0]) // BATCH // EVALUATIONS,
        validation_data=test,
        validation_batch_size=BATCH,
        verbose=2,
    )
    return history.history["val_accuracy"]


def seconds_of_a_step(model, training):
    """Of all cores together, after a first step, which compiles."""
    batch = [x[:BATCH] for x in training]
    model.fit(*batch, batch_size=BATCH, verbose=0)
    start = time.process_time()
    model.fit(*batch, batch_size=BATCH, verbose=0)
    return time.process_time() - start


def draw(path, steps, curves):
    """Draws accuracies against steps."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    at = [steps * (i + 1) // EVALUATIONS for i in range(EVALUATIONS)]
    for label, curve in curves.items():
        name = f"{label}, {curve[-1]:.2f}"
        axes.plot(at, curve, "o-", markersize=3, color=ROWS[label]["color"], label=name)
    axes.axhline(1 / 2, color="#b0b0b0", linewidth=0.8, linestyle="--")
    axes.set_xlim(0)
    axes.set_ylim(0, 1)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("accuracy, files held out")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    import jsonargparse

    jsonargparse.CLI(main, as_positional=False)
