"""Calls in a process of their own, whose memory can be told."""

import concurrent.futures
import ctypes
import functools
import multiprocessing
import os

# Of glibc's malloc.h: from which size on memory is mapped, and so given back.
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 16


def call(function, *arguments, initializer=None):
    """What a function returns that is called in a new process.

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
    """As `call`, in a process that keeps memory as TensorFlow does by itself."""
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
    raises that size to what was freed last, and keeps what is smaller: a step that
    needs little would seem to need nothing after the first.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
