"""Long documents are classified byte by byte: which kind of text is where?

    python -m examples.documents               # some minutes on 2 cores
    python -m examples.documents --steps 10    # a minute, only to see that it runs

A document is 4,096 bytes, glued of pieces of eight files, one of each kind: code,
prose, drawings, fonts and music that installed packages ship. Its classes are the
places of the kinds, first to eighth. Every byte is a token, and before them stand eight
more, a question for each kind, at which the encoder answers: what they know of the
bytes they know by attention. A quarter of the files is held out.

Beside the Performer stand the same model with the mean of all tokens in the place of
attention, and with a window alone. Exact attention takes too long here to be trained:
its step is timed. The counts of a document's bytes do not depend on the order; but a
regression on those of its pieces shows that who is told where they are needs no more.
Curves go to `runs/documents`.
"""

import importlib.util
import pathlib
import sysconfig
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from keras_performer import PerformerAttention
from keras_performer.layers import (
    ExactAttention,
    LocalAttention,
    MixingLayer,
    PerformerBlock,
)

# For each kind the package that ships its files, and which those are.
KINDS = {
    "Python": (None, "*.py"),
    "C header": ("numpy", "**/*.h"),
    "prose": ("sklearn", "datasets/descr/*.rst"),
    "drawing": ("matplotlib", "mpl-data/images/*.svg"),
    "font": ("matplotlib", "mpl-data/fonts/afm/*.afm"),
    "tune": ("music21", "corpus/**/*.abc"),
    "humdrum": ("music21", "corpus/**/*.krn"),
    "score": ("music21", "corpus/**/*.xml"),
}
PIECE = 512  # bytes of a file
LENGTH = len(KINDS) * (1 + PIECE)  # questions and bytes
SIZES = {"num_heads": 2, "key_dim": 16}
DIM = 32
BATCH = 8
EVALUATIONS = 10


@keras.saving.register_keras_serializable(package="examples")
class Mean(MixingLayer):
    """Gives every token the mean of all: attention with equal weights."""

    def mix(self, x, mask, training=None):
        return tf.zeros_like(x) + tf.reduce_mean(x, axis=1, keepdims=True)


ROWS = {
    "mean of all tokens": {"make": Mean, "color": "#8a8a8a"},
    "window alone": {
        "make": lambda: LocalAttention(**SIZES, sliding_window=64),
        "color": "#2f9e44",
    },
    "Performer": {
        "make": lambda: PerformerAttention(**SIZES, num_random_features=64, seed=0),
        "color": "#0b5cab",
    },
}


def main(steps: int = 400, output_dir: str = "runs/documents"):
    """Trains, prints and draws.

    Args:
        steps: optimizer steps of each model, rounded to a multiple of 10.
        output_dir: folder for `curves.png`.

    Returns:
        The accuracy of the regression; dict of those of models, after a tenth of the
        steps, two tenths and so on; and dict of the CPU seconds of a step.
    """
    steps = max(1, steps // EVALUATIONS) * EVALUATIONS
    random = np.random.default_rng(0)
    known, unknown = read_files()
    training = documents(known, BATCH * steps, random)
    test = documents(unknown, 48, random)
    told = told_the_pieces(training, test)
    curves, seconds = {}, {}
    for label, row in ROWS.items():
        print(f"\n{label}: {steps} steps")
        model = make_model(row["make"]())
        curves[label] = train(model, training, test)
        seconds[label] = seconds_of_a_step(model, training)
    model = make_model(ExactAttention(**SIZES))
    seconds["exact attention"] = seconds_of_a_step(model, training)

    print(f"\n{'':28}accuracy  CPU seconds a step")
    print(f"{'counts, told the pieces':28}{told:8.3f}")
    for label, value in seconds.items():
        accuracy = f"{curves[label][-1]:8.3f}" if label in curves else " " * 8
        print(f"{label:28}{accuracy}{value:10.2f}")
    path = pathlib.Path(output_dir) / "curves.png"
    draw(path, steps, curves)
    print(f"wrote {path}")
    return told, curves, seconds


def read_files(at_most=60):
    """Files of each kind as bytes: those to train on, and every fourth, held out."""
    training, held_out = [], []
    for package, pattern in KINDS.values():
        folder = pathlib.Path(sysconfig.get_path("stdlib"))
        if package is not None:
            folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
        paths = sorted(x for x in folder.glob(pattern) if x.stat().st_size >= PIECE)
        evenly = np.linspace(0, len(paths) - 1, min(at_most, len(paths))).astype(int)
        files = [np.frombuffer(paths[i].read_bytes(), np.uint8) for i in evenly]
        held_out.append(files[::4])
        training.append([file for i, file in enumerate(files) if i % 4])
    return training, held_out


def documents(files, count, random):
    """Tokens `(count, LENGTH)`, questions and bytes, and the places of the kinds."""
    places = random.permuted(np.tile(np.arange(len(KINDS)), (count, 1)), axis=1)
    pieces = np.empty((count, len(KINDS), PIECE), "int32")
    for of_document, of_kinds in zip(pieces, places):
        for of_kind, place in zip(files, of_kinds):
            file = of_kind[random.integers(len(of_kind))]
            start = random.integers(len(file) - PIECE, endpoint=True)
            of_document[place] = file[start : start + PIECE]
    questions = np.tile(256 + np.arange(len(KINDS), dtype="int32"), (count, 1))
    return np.concatenate([questions, pieces.reshape(count, -1)], axis=1), places


def told_the_pieces(training, test):
    """The accuracy of a regression on the counts of the bytes of single pieces."""
    given = []
    for tokens, places in (training, test):
        pieces = tokens[:, len(KINDS) :].reshape(-1, PIECE)
        counts = [np.bincount(piece, minlength=256) for piece in pieces]
        given.append((np.array(counts), np.argsort(places).ravel()))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
    return float(model.fit(*given[0]).score(*given[1]))


def normal(stddev):
    return keras.initializers.RandomNormal(stddev=stddev)


class Places(layers.Layer):
    """Adds a trained vector for each 64 tokens, which says where they are."""

    def build(self, shape):
        shape = -(-shape[1] // 64), shape[2]
        self.table = self.add_weight(shape=shape, initializer=normal(0.5), name="table")

    def call(self, x):
        return x + tf.repeat(self.table, 64, axis=0)[: x.shape[1]]


def make_model(attention):
    """A block of a convolution, one of a convolution and attention; few parameters."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = Places()(layers.Embedding(256 + len(KINDS), DIM, normal(1.0))(tokens))
    near = {"conv_kernel_size": 8, "conv_padding": "same"}
    x = PerformerBlock(None, 2 * DIM, **near)(x)
    x = PerformerBlock(attention, 2 * DIM, **near)(x)
    answers = layers.LayerNormalization()(x[:, : len(KINDS)])
    model = keras.Model(tokens, layers.Dense(len(KINDS))(answers))
    model.compile(
        keras.optimizers.Adam(3e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(model, training, test):
    """Fits; returns the accuracy on held-out files, ten times in the run."""
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
    axes.axhline(1 / len(KINDS), color="#b0b0b0", linewidth=0.8, linestyle="--")
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
