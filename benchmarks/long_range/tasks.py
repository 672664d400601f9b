"""What the models are to learn, small for two cores or as published."""

import dataclasses
import functools
import math

import numpy as np

from benchmarks.learning.tasks import Task
from benchmarks.long_range import images, listops, pathfinder, proteins, texts

# Of a held-out batch, which exact attention can bear.
TOKENS_AT_ONCE = 2**14
HELD_OUT = 1024


@dataclasses.dataclass(frozen=True)
class LongTask(Task):
    """A class to be told from a long sequence, or without classes the next token.

    Attributes:
        key_dim: int, size of a head.
        num_layers: int, blocks of the model.
        warm_up_steps: int, steps of a warm-up on the task's own inputs.
        padded: bool, whether token 0 is padding.
        pairs: bool, whether an example is two sequences: batches of `batch_size` have
            `(2 * batch_size, L)` tokens.
    """

    key_dim: int = 16
    num_layers: int = 2
    warm_up_steps: int = 0
    padded: bool = False
    pairs: bool = False


def task(name, draw, length, vocabulary_size, num_classes, held_out_draw=None, **more):
    """A task; its window covers an eighth of the length or, of short ones, less.

    Args:
        draw: function of a random generator and a batch size.
        held_out_draw: the same for what is not trained on, if that is not `draw`.
    """
    return LongTask(
        name=name,
        draw=draw,
        held_out=functools.partial(fixed, held_out_draw or draw, length),
        length=length,
        window=length // 16,
        vocabulary_size=vocabulary_size,
        num_classes=num_classes,
        measure="accuracy" if num_classes else "bits",
        **more,
    )


def fixed(draw, length):
    """Batches that are the same in every run."""
    random = np.random.default_rng(12345)
    batch_size = max(TOKENS_AT_ONCE // length, 1)
    return [draw(random, batch_size) for _ in range(math.ceil(HELD_OUT / batch_size))]


def list_operations(length, **options):
    """The value of nested operations on digits."""
    return task(
        f"ListOps {length:,}",
        functools.partial(listops.draw, length // 4, length),
        length,
        listops.VOCABULARY_SIZE,
        num_classes=10,
        padded=True,
        **options,
    )


def packages(length, **options):
    """The package of the standard library that bytes come from."""
    draw = texts.draw_classified
    return task(
        f"bytes {length:,}",
        functools.partial(draw, "training", length),
        length,
        texts.VOCABULARY_SIZE,
        num_classes=texts.NUM_CLASSES,
        held_out_draw=functools.partial(draw, "held out", length),
        padded=True,
        **options,
    )


def one_file(length, **options):
    """Whether two pieces of text come from one file."""
    draw = texts.draw_pairs
    return task(
        f"retrieval 2 x {length:,}",
        functools.partial(draw, "training", length),
        length,
        texts.VOCABULARY_SIZE,
        num_classes=2,
        held_out_draw=functools.partial(draw, "held out", length),
        padded=True,
        pairs=True,
        **options,
    )


def digits(size, scale, **options):
    """The digit that stands somewhere in an image, from its pixels."""
    draw = images.draw_digits
    return task(
        f"digits {size**2:,}",
        functools.partial(draw, "training", size, scale),
        size**2,
        images.VOCABULARY_SIZE,
        num_classes=10,
        grid=(size, size),
        held_out_draw=functools.partial(draw, "held out", size, scale),
        **options,
    )


def residues(length, **options):
    """The next residue of proteins, which `proteins` downloads."""
    draw = proteins.draw_proteins
    return task(
        f"proteins {length:,}",
        functools.partial(draw, "training", length),
        length,
        proteins.VOCABULARY_SIZE,
        num_classes=None,
        held_out_draw=functools.partial(draw, "held out", length),
        **options,
    )


def paths(size, **options):
    """Whether a dashed path joins two circles, from pixels."""
    return task(
        f"Pathfinder {size**2:,}",
        functools.partial(pathfinder.draw, size),
        size**2,
        256,
        num_classes=2,
        grid=(size, size),
        **options,
    )
