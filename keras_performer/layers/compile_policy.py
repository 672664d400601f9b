"""When `jit_compile="auto"` has XLA compile the attention of a layer by itself."""

import os

import tensorflow as tf

from keras_performer.ops.devices import has_gpu

# Shorter sequences take less time in a whole training than the compiler does.
MIN_COMPILED_LENGTH = 1024
# On CPUs XLA runs each product of a chunk on one thread, TensorFlow on all. Compiled
# attention measured faster with 2 to 4 threads, or as fast (causal, 16,384 tokens, 4);
# with one it took 0.9 to 1.1 times as long (4,096 tokens).
MAX_CPU_THREADS = 4


def should_compile(jit_compile, query, key, training, on_cpu):
    """What `jit_compile="auto"` means for these queries and keys.

    Args:
        jit_compile: True, False or "auto".
        query: tensor `(B, T, ...)`.
        key: tensor `(B, S, ...)`.
        training: bool, or `None`.
        on_cpu: function of nothing, whether it pays where there is no GPU; asked last.
    """
    if jit_compile != "auto":
        return jit_compile
    # Each length compiles anew; without training there may be many, and a model that
    # is exported should run where XLA is not. Strategies compile, or place, their own.
    lengths = (query.shape[1], key.shape[1])
    return (
        training is True
        and not tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and None not in lengths
        and max(lengths) >= MIN_COMPILED_LENGTH
        and (has_gpu() or on_cpu())
    )


def pays_on_cpu(causal):
    """Whether compiled attention is faster here, as far as it was measured."""
    major, minor = tf.__version__.split(".")[:2]
    # before, XLA on CPUs ran the many small products of causal attention in sequence
    if causal and (int(major), int(minor)) < (2, 21):
        return False
    return cpu_threads() <= MAX_CPU_THREADS


def window_pays_on_cpu():
    """Whether a compiled window alone is: no.

    It was a tenth faster with two threads and windows of 64, and took up to twice as
    long with one thread or windows of 257.
    """
    return False


def cpu_threads():
    """How many threads an operation of TensorFlow may use."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    if threads:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
