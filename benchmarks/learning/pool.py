"""Runs that are made side by side, each on a core of its own, and kept in a file."""

import functools
import json
import multiprocessing

import keras
import tensorflow as tf

# TensorFlow keeps some 50 MB of each model as long as a process lives.
RUNS_OF_A_PROCESS = 16


def complete(train, wanted, path, name_of, workers, all_there_are=False):
    """Makes the runs that a file lacks, adds a line of JSON for each, and tells of it.

    Args:
        train: function from the arguments of a run to its result, a dict.
        wanted: list of dicts of arguments.
        path: of the file with the results of earlier runs; it need not be there.
        name_of: function from arguments, or a result, to what tells runs apart.
        workers: as in `results`; `None` trains nothing.
        all_there_are: bool, return results of other runs in the file, too.

    Returns:
        The results there are of the runs that are wanted, in their order, and others
        after them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    made = {name_of(run): run for run in map(json.loads, lines)}
    missing = [run for run in wanted if name_of(run) not in made]
    if workers is None:
        missing = []
    for result in results(train, missing, workers):
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


def results(train, runs, workers):
    """Trains, and yields what `train` returns as runs end, in any order.

    The operations of a small model are too short to be shared among cores.

    Args:
        train: function from the arguments of a run to its result; picklable.
        runs: list of dicts of arguments.
        workers: int, the number of processes, each with one thread; 0 trains in this
            process, with all cores.
    """
    trained = functools.partial(alone, train)
    if not workers:
        yield from map(trained, runs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, use_one_thread, (), RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(trained, runs)


def use_one_thread():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def alone(train, run):
    result = train(**run)
    keras.utils.clear_session()
    return result
