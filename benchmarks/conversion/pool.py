"""Rows that are measured side by side, each on a core of its own."""

import functools
import multiprocessing
import os
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
    # products of small matrices take half the time; Intel's CPUs have it so by default
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
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
    row = rows.named(name)
    start = time.process_time()
    source, model = _made(package, name, folder)
    given = scores.questions(source)
    keras.utils.set_random_seed(0)
    losses = scores.losses_of(row, model, source, given, num_draws, family)
    return losses, time.process_time() - start


@functools.lru_cache(maxsize=1)
def _made(package, name, folder):
    """The `Pretrained`, and the model of a row: all parts of the row are of one."""
    source = MODELS[package].load(folder)
    return source, rows.named(name).make(source)
