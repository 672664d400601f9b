"""Rows that are measured side by side, each on a core of its own."""

import multiprocessing
import time

import keras

from benchmarks.conversion import rows, scores
from benchmarks.conversion.models import MODELS
from benchmarks.learning.pool import use_one_thread


def results(jobs, workers):
    """Yields what `measured` returns for each job, in their order.

    To make a model of layers takes Python most of the time, which has one thread.

    Args:
        jobs: list of arguments of `measured`.
        workers: int, the number of processes; 0 for this one, with all cores.
    """
    if not workers:
        yield from map(measured, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, use_one_thread) as pool:
        yield from pool.imap(measured, jobs)


def measured(job):
    """The losses of a part of a row, and the seconds of a processor that it took.

    Args:
        job: tuple of the package of a model, the name of a row, one of its
            `scores.parts_of`, the number of draws, and the folder with the wheels.
    """
    package, name, family, num_draws, folder = job
    source = MODELS[package].load(folder)
    row = rows.named(name)
    keras.utils.set_random_seed(0)
    start = time.process_time()
    losses = scores.losses_of(row, source, scores.questions(source), num_draws, family)
    return losses, time.process_time() - start
