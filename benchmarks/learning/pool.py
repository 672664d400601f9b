"""Runs that are made side by side, each on a core of its own."""

import multiprocessing

import keras
import tensorflow as tf

from benchmarks.learning import training

# TensorFlow keeps some 50 MB of each model as long as a process lives.
RUNS_OF_A_PROCESS = 16


def results(runs, workers):
    """Trains, and yields what `training.train` returns as runs end, in any order.

    The operations of a small model are too short to be shared among cores.

    Args:
        runs: list of arguments of `training.train`.
        workers: int, the number of processes, each with one thread; 0 trains in this
            process, with all cores.
    """
    if not workers:
        yield from map(trained, runs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, use_one_thread, (), RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(trained, runs)


def use_one_thread():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def trained(run):
    result = training.train(**run)
    keras.utils.clear_session()
    return result
