"""How well a model does, and how that changes as it is trained further."""

import time
import typing

import numpy as np

from benchmarks.conversion.small.cases import SEED, batch
from benchmarks.learning.measuring import summing
from benchmarks.learning.training import step_of


class Result(typing.NamedTuple):
    """How well a model answers held-out questions.

    Attributes:
        name: str.
        accuracy: float.
        bits: list of floats, of each held-out sequence.
        seconds: float, what the last part of the way there took.
        steps, further_steps: ints, of transfer, and then of ordinary training.
    """

    name: str
    accuracy: float
    bits: list[float]
    seconds: float = 0.0
    steps: int = 0
    further_steps: int = 0

    def lost(self, exact):
        """Bits lost beside another `Result`, paired, and their standard error."""
        lost = np.subtract(self.bits, exact.bits)
        return lost.mean(), lost.std(ddof=1) / np.sqrt(len(lost))


def asked(case, name, model, steps=0, seconds=0.0):
    """The `Result` of a model."""
    result = Result(name, *answers(summing(model, case.task)()), seconds, steps)
    bits = np.mean(result.bits)
    print(f"{name}: {result.accuracy:.4f}, {bits:.3f} bits", flush=True)
    return result


def further_trained(case, first, model, further_steps):
    """Yields a `Result` after each number of steps of ordinary training.

    Args:
        case: `Case`.
        first: `Result` of the model.
        model: it is trained.
        further_steps: list of ints.
    """
    step = step_of(model, case.task.learning_rate, False)
    sums = summing(model, case.task)
    random = np.random.default_rng([SEED, 9])
    seconds = 0.0
    for index in range(1, max(further_steps) + 1):
        start = time.perf_counter()
        step(index, *batch(case.task, random))
        seconds += time.perf_counter() - start
        if index in further_steps:
            accuracy, bits = answers(sums())
            yield first._replace(
                accuracy=accuracy, bits=bits, further_steps=index, seconds=seconds
            )


def answers(sums):
    """Accuracy, and the bits of each sequence, of what `summing` returns."""
    right, loss, asked = sums
    return right.sum() / asked.sum(), list(loss / asked)
