"""Calls in processes of their own: alone, or side by side on a core each."""

import concurrent.futures
import ctypes
import functools
import json
import multiprocessing
import os

import keras
import tensorflow as tf

# Of glibc's malloc.h: from which size on memory is mapped, and so given back.
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 16
# TensorFlow keeps some 50 MB of each model as long as a process lives.
RUNS_OF_A_PROCESS = 16


def call(function, *arguments, initializer=None):
    """Returns the result of a function in a new process, whose memory can be told.

    On CPUs with AVX-512 TensorFlow keeps memory that is freed for what comes next
    (oneDNN's allocator): a step would seem to need none after the first. In this
    process it gives memory back, as on other CPUs; steps take 1.3 to 1.8 times as long.

    Args:
        function: of a module; it, its arguments and its result go by pickle.
        *arguments: of the function.
        initializer: function that is called first. Defaults to `None`.
    """
    start = functools.partial(_start, initializer)
    return in_new_process(function, *arguments, initializer=start)


def in_new_process(function, *arguments, initializer=None):
    """Calls like `call`, in a process that keeps memory as TensorFlow itself does."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        1, spawn, initializer=initializer
    ) as process:
        return process.submit(function, *arguments).result()


def _start(initializer):
    # TensorFlow reads it with its first tensor: that it was imported before is no harm
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    if initializer is not None:
        initializer()


def give_back():
    """For `initializer`: has the process give back all that is freed, large or small.

    glibc gives back what it mapped. Unless it is told from which size on it maps, it
    raises that size to what was freed last, and keeps what is smaller.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def use_one_thread():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def results(function, runs, workers):
    """Yields what a function returns of runs as they end, in any order.

    The operations of a small model are too short to be shared among cores.

    Args:
        function: of the arguments of a run; picklable.
        runs: list of dicts of arguments.
        workers: int, the number of processes, each with one thread; 0 for this process,
            with all cores.
    """
    function = functools.partial(_of_run, function)
    if not workers:
        yield from map(function, runs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, use_one_thread, (), RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(function, runs)


def _of_run(function, run):
    result = function(**run)
    keras.utils.clear_session()
    return result


def complete(function, wanted, path, name_of, workers, all_there_are=False):
    """Makes the runs that a file lacks, and adds a line of JSON for each.

    Args:
        function, workers: as in `results`; without `workers` (`None`) none is made.
        wanted: list of dicts of arguments.
        path: of the file with the results of earlier runs; it need not be there.
        name_of: function from arguments, or a result, to what tells runs apart.
        all_there_are: bool, return results of other runs in the file, too.

    Returns:
        The results there are of the runs that are wanted, in their order, and others
        after them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    made = {name_of(run): run for run in map(json.loads, lines)}
    missing = [run for run in wanted if name_of(run) not in made]
    for result in results(function, [] if workers is None else missing, workers):
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        made[name_of(result)] = result
        done = sum(name_of(run) in made for run in wanted)
        print(
            f"{done}/{len(wanted)} {', '.join(map(str, name_of(result)))}: "
            f"{result['result']:.3f} in {result['seconds']:.0f} s",
            flush=True,
        )
    names = dict.fromkeys(map(name_of, wanted))
    if all_there_are:
        names |= dict.fromkeys(made)
    return [made[name] for name in names if name in made]
