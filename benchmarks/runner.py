"""Functions that all benchmarks share: options, processes, files, the machine."""

import argparse
import concurrent.futures
import ctypes
import datetime
import functools
import json
import multiprocessing
import os
import pathlib
import platform
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
RESULTS, RUNS = ROOT / "benchmarks/results", pathlib.Path("runs")
# From glibc's malloc.h: memory blocks of at least this size are mapped, so given back.
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 16
# TensorFlow keeps about 50 MB of each model until a process ends.
RUNS_OF_A_PROCESS = 16


def options(about, argv=None, choices=(), **defaults):
    """Reads a command line with an option for each keyword.

    `False` makes a flag, and a tuple takes several values. A type instead of a value
    has no default, in a list it takes several values. `choices` is a dict by option.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        flag = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(flag, action="store_true")
            continue
        several = isinstance(default, (tuple, list))
        first = default[0] if several else default
        named = isinstance(first, type)
        parser.add_argument(
            flag,
            type=first if named else type(first),
            default=None if named else default,
            nargs="+" if several else None,
            choices=dict(choices).get(name),
        )
    return parser.parse_args(argv)


def in_new_process(function, *arguments, start=None):
    """Returns the result of a module's function, called in a new process.

    `start` is called first in that process.
    """
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, initializer=start) as process:
        return process.submit(function, *arguments).result()


def with_plain_memory():
    """For `start`: makes each step allocate its memory, so that its peak is visible.

    On CPUs with AVX-512, TensorFlow keeps freed memory for later use (oneDNN's
    allocator), so that only the first step seems to need memory. With this function,
    steps take 1.3 to 1.8 times as long.
    """
    # TensorFlow reads this with its first tensor, so it may already be imported
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"


def give_back():
    """For `start`: makes the process give back all freed memory.

    glibc gives back mapped blocks. Unless the least size of mapped blocks is fixed,
    glibc raises it to the size of a freed block, and keeps smaller blocks.
    """
    with_plain_memory()
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def use_one_thread():
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def results(function, runs, workers):
    """Yields results of a function for dicts of arguments, in any order.

    Each of the `workers` processes has one thread, as operations of small models are
    too short to share among cores. 0 means this process with all cores.
    """
    function = functools.partial(_of_run, function)
    if not workers:
        yield from map(function, runs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, use_one_thread, (), RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(function, runs)


def _of_run(function, run):
    import keras

    result = function(**run)
    keras.utils.clear_session()
    return result


def read(path):
    """Returns the JSON of a file; an empty dict if there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, data):
    """Writes JSON so that an interruption leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(beside, path)


def add_rows(path, results, cases, function):
    """Adds `function(case)` of each case to the rows of results; saves each."""
    for case in cases:
        row = {**case, **function(case)}
        results["rows"].append(row)
        print(row, flush=True)
        save(path, results)


def write_page(folder, parts, name="tables.md"):
    """Writes a page of Markdown from its non-empty parts; returns the text."""
    text = "\n\n".join(filter(None, parts))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n")
    return text


def describe(threads):
    """Describes machine, date and command for a file of results."""
    spec = sys.modules["__main__"].__spec__
    # a package is run by its module `__main__`
    module = spec.name.removesuffix(".__main__") if spec else sys.argv[0]
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_bytes": memory_bytes(),
        # other programs slow PyTorch down far more than TensorFlow
        "load_at_start": os.getloadavg()[0],
        "highest_load": 0.0,
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }


def note_load(described):
    described["highest_load"] = max(described["highest_load"], os.getloadavg()[0])


def said(described, libraries):
    """Formats one line about a measurement from `describe` and library versions."""
    before, highest = described["load_at_start"], described["highest_load"]
    return (
        f"`{described['command']}`, {described['date']}. {described['cpu']}, "
        f"{described['threads']} threads; load {before:.1f} before, at most "
        f"{highest:.1f} meanwhile; {libraries}."
    )


def commit():
    """Returns the commit, with "-dirty" if files differ; `None` without git."""
    git = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def machine():
    """Returns a short text: the processor, its clock if known, and its cores."""
    clock = fields("/proc/cpuinfo").get("cpu MHz")
    at_clock = f" at {float(clock):,.0f} MHz" if clock else ""
    return f"{processor()}{at_clock}, {os.cpu_count()} cores"


def processor():
    names = fields("/proc/cpuinfo")
    return names.get("model name") or platform.processor() or platform.machine()


def memory_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes():
    """Returns the bytes that programs can get, free or in caches."""
    return 1024 * int(fields("/proc/meminfo")["MemAvailable"].split()[0])  # of kB


def fields(path):
    """Returns the lines `name: value` of a file of Linux."""
    with open(path) as lines:
        pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {name.strip(): value.strip() for name, value in pairs}
