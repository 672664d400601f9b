"""Trains a small model of text or of digits, and exports it for serving.

    python -m examples.serving.train text
    python -m examples.serving.train digits
    python -m examples.serving runs/serving/text

The models of `examples.text` and `examples.digits` train with Performer attention. The
digits took five minutes of CPU time, on 2 busy cores of an AMD EPYC; the text takes
longer.
"""

import jsonargparse
import keras
import numpy as np

from examples import digits, text
from examples.serving import vocabulary


def train_text(steps: int = 600, length: int = 2048, folder: str = "runs/serving/text"):
    """Trains on the bytes of Python's standard library.

    The model has a window and a forget gate. It writes texts of any length.

    Args:
        steps: optimizer steps of two sequences each.
        length: bytes of a sequence.
        folder: folder of the exported model.
    """
    sources, _ = text.read_sources()
    starts = np.random.default_rng(0).integers(0, len(sources) - length, steps * 2)
    model = text.make_model("performer", None)
    inputs, targets = text.windows(sources, starts, length)
    model.fit(inputs, targets, batch_size=2, shuffle=False, verbose=2)
    export(model, folder, vocabulary.Text())


def train_digits(steps: int = 300, folder: str = "runs/serving/digits"):
    """Trains on handwritten digits, pixel by pixel.

    Args:
        steps: optimizer steps, 32 digits each.
        folder: folder of the exported model.
    """
    images, _ = digits.read_digits()
    inputs, targets = digits.split(digits.epochs(images, 32 * steps))
    model = digits.make_model(steps, **digits.ROWS["Performer"])
    model.fit(inputs, targets, batch_size=32, shuffle=False, verbose=2)
    export(model, folder, pixels_of_digits())


def pixels_of_digits():
    """Returns the meaning of the tokens of `examples.digits`."""
    inks = np.linspace(1, 0, digits.LEVELS)[:, np.newaxis]
    colors = inks + (1 - inks) * digits.DRAWN
    return vocabulary.Pixels(
        width=digits.SIDE,
        height=digits.SIDE,
        palette=[
            f"#{bytes(color).hex()}" for color in np.uint8(np.round(255 * colors))
        ],
        start=[digits.START],
        max_length=digits.LENGTH + 1,
    )


def export(model: keras.Model, folder, meaning):
    """Writes a model and its vocabulary for `python -m examples.serving`."""
    model.export(folder, verbose=False)
    vocabulary.write(folder, meaning)
    print(f"wrote {folder}: python -m examples.serving {folder}")


if __name__ == "__main__":
    jsonargparse.CLI({"text": train_text, "digits": train_digits}, as_positional=False)
