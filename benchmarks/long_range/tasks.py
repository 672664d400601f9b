"""What the models are to learn, small for two cores or as published."""

import dataclasses
import functools

from benchmarks.learning import real_tasks
from benchmarks.learning.tasks import Task, recall, same_batches
from benchmarks.long_range import images, listops, pathfinder, proteins, texts

# Of a held-out batch, which exact attention can bear.
TOKENS_AT_ONCE = 2**14
HELD_OUT = 1024


@dataclasses.dataclass(frozen=True)
class LongTask(Task):
    """A class to be told from a long sequence, or without classes a token at a place.

    Attributes:
        key_dim: int, size of a head.
        num_layers: int, blocks of the model.
        warm_up_steps: int, steps of a warm-up on the task's own inputs.
        padded: bool, whether token 0 is padding.
        pairs: bool, whether an example is two sequences: batches of `batch_size` have
            `(2 * batch_size, L)` tokens.
        joins_tokens: bool, whether what a token is read as has the one before it, too,
            which no attention need spend its time to find.
    """

    key_dim: int = 16
    num_layers: int = 2
    warm_up_steps: int = 0
    padded: bool = False
    pairs: bool = False
    joins_tokens: bool = False


def task(name, draws, length, vocabulary_size, num_classes, **more):
    """A task; its window covers an eighth of the length or, of short ones, less.

    Args:
        draws: pair of functions of a random generator and a batch size: of what is
            trained on, and of what is not.
    """
    training, held_out = draws
    return LongTask(
        name=name,
        draw=training,
        held_out=functools.partial(fixed, held_out, length),
        length=length,
        window=length // 16,
        vocabulary_size=vocabulary_size,
        num_classes=num_classes,
        measure="accuracy" if num_classes else "bits",
        **more,
    )


def fixed(draw, length):
    """Batches that are the same in every run."""
    return same_batches(draw, HELD_OUT, max(TOKENS_AT_ONCE // length, 1))


def of_parts(draw, *sizes):
    """The draws of a task whose data are split."""
    return [functools.partial(draw, part, *sizes) for part in ("training", "held out")]


def list_operations(length, **options):
    """The value of nested operations on digits."""
    return task(
        f"ListOps {length:,}",
        [functools.partial(listops.draw, length // 4, length)] * 2,
        length,
        listops.VOCABULARY_SIZE,
        num_classes=10,
        padded=True,
        **options,
    )


def packages(length, **options):
    """The package of the standard library that bytes come from."""
    return task(
        f"packages {length:,}",
        of_parts(texts.draw_classified, length),
        length,
        texts.VOCABULARY_SIZE,
        num_classes=texts.NUM_CLASSES,
        padded=True,
        **options,
    )


def one_file(length, **options):
    """Whether two pieces of text come from one file."""
    return task(
        f"retrieval 2 x {length:,}",
        of_parts(texts.draw_pairs, length),
        length,
        texts.VOCABULARY_SIZE,
        num_classes=2,
        padded=True,
        pairs=True,
        **options,
    )


def digits(size, scale, **options):
    """The digit that stands somewhere in an image, from its pixels."""
    return task(
        f"digits {size**2:,}",
        of_parts(images.draw_digits, size, scale),
        size**2,
        images.VOCABULARY_SIZE,
        num_classes=10,
        grid=(size, size),
        **options,
    )


def residues(length, **options):
    """The next residue of proteins, which `proteins` downloads."""
    return task(
        f"proteins {length:,}",
        of_parts(proteins.draw_proteins, length),
        length,
        proteins.VOCABULARY_SIZE,
        num_classes=None,
        **options,
    )


def questions(length, num_pairs, **options):
    """Associative recall of `benchmarks.learning`: the value beside a key, far back."""
    window = length // 16
    return of_learning(recall(length, num_pairs, window=window, **options))


def sources(length, **options):
    """The next byte of Python sources, of `benchmarks.learning`; rotary positions."""
    # as models have by default
    options["position_embedding"] = "rotary"
    task = real_tasks.sources(length, window=length // 16, **options)
    return dataclasses.replace(of_learning(task), hidden_dim=64)


def of_learning(task):
    """A task that asks for a token at each place, which is warm-up enough."""
    return LongTask(**vars(task), joins_tokens=True)


def paths(size, **options):
    """Whether a dashed path joins two circles, from pixels."""
    return task(
        f"Pathfinder {size**2:,}",
        [functools.partial(pathfinder.draw, size)] * 2,
        size**2,
        256,
        num_classes=2,
        grid=(size, size),
        **options,
    )
