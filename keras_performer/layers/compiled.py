"""Attention as one function, compiled by XLA by itself where that is safe and pays."""

import functools
import os
import weakref

import tensorflow as tf

from keras_performer import ops

# Shorter sequences take less time in a whole training than the compiler does.
MIN_COMPILED_LENGTH = 1024
# On CPUs XLA runs each product of a chunk on one thread, TensorFlow on all: measured,
# compiled attention is faster with 1 and 2 threads, and not with 4.
MAX_CPU_THREADS = 2


# The compiled functions of a graph, by options and shapes. Not of the whole process: a
# function keeps what it was traced for, and what differentiates it changes it.
_functions = weakref.WeakKeyDictionary()


def attention(jit_compile, *options):
    """The op that the options feature map, causal and chunk size stand for.

    Returns a function of query, key, value, projection matrix, key mask and state; it
    gives the attended values, and the state of causal attention. Layers of one graph
    with equal options share what is compiled.
    """
    return functools.partial(_compiled if jit_compile else _plain, *options)


def should_compile(jit_compile, query, key, training):
    """What `jit_compile="auto"` means for these queries and keys."""
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
        and (cpu_threads() <= MAX_CPU_THREADS or has_gpu())
    )


def has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


def cpu_threads():
    """How many threads an operation of TensorFlow may use."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    if threads:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _plain(feature_map, causal, chunk_size, query, key, value, matrix, mask, state):
    kernel = feature_map.kernel(matrix)
    if causal:
        return ops.causal_attention(query, key, value, kernel, mask, state, chunk_size)
    return ops.bidirectional_attention(query, key, value, kernel, mask), None


def _compiled(feature_map, causal, chunk_size, query, key, value, *others):
    options = feature_map, causal, chunk_size
    functions = _functions.setdefault(tf.compat.v1.get_default_graph(), {})
    name = options + tuple(tuple(x.shape) for x in (query, key, value))
    if name not in functions:
        op = functools.partial(_plain, *options)
        functions[name] = tf.function(op, jit_compile=True, autograph=False)
    return functions[name](query, key, value, *others)
