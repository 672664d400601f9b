"""Attention whose passes XLA compiles by themselves, where that is safe and pays."""

import functools
import os
import weakref

import tensorflow as tf

from keras_performer import ops

# Shorter sequences take less time in a whole training than the compiler does.
MIN_COMPILED_LENGTH = 1024
# On CPUs XLA runs each product of a chunk on one thread, TensorFlow on all. Compiled
# attention measured faster with 2 to 4 threads, or as fast (causal, 16,384 tokens, 4).
MAX_CPU_THREADS = 4


# The functions of a graph, by what they compute and the shapes. Not of the process: a
# function keeps what it was traced for, and what differentiates it changes it.
_functions = weakref.WeakKeyDictionary()


def attention(jit_compile, feature_map, causal, chunk_size):
    """The op of that feature map.

    Returns a function of query, key, value, projection matrix, key mask and state; it
    gives the attended values, and the state of causal attention. Layers of one graph
    with equal options share what is compiled.
    """
    options = feature_map, causal, chunk_size
    attend = functools.partial(_attend, jit_compile, *options)
    if jit_compile and tf.executing_eagerly():
        # eagerly a tape would differentiate each pass by itself, which XLA refuses
        return _shared(options, attend)
    return attend


def should_compile(jit_compile, causal, query, key, training):
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
        and (has_gpu() or pays_on_cpu(causal))
    )


def has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


def pays_on_cpu(causal):
    """Whether compiled attention is faster here, as far as it was measured."""
    major, minor = tf.__version__.split(".")[:2]
    # before, XLA on CPUs ran the many small products of causal attention in sequence
    if causal and (int(major), int(minor)) < (2, 21):
        return False
    return cpu_threads() <= MAX_CPU_THREADS


def cpu_threads():
    """How many threads an operation of TensorFlow may use."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    if threads:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _attend(
    jit_compile, feature_map, causal, chunk_size, query, key, value, matrix, mask, state
):
    inputs = query, key, value, feature_map.kernel(matrix), mask
    how = {}
    if jit_compile:
        how["call"] = functools.partial(_call_compiled, feature_map, matrix)
    if causal:
        return ops.causal_attention(*inputs, state, chunk_size, **how)
    return ops.bidirectional_attention(*inputs, **how), None


def _call_compiled(feature_map, matrix, function, _, *arguments):
    """`function(kernel, *arguments)`, which is one pass of attention, compiled."""

    def run(matrix, *arguments):
        return function(feature_map.kernel(matrix), *arguments)

    # one function for each shape: TensorFlow warns where one has many
    shapes = tuple(str(getattr(x, "shape", x)) for x in tf.nest.flatten(arguments))
    name = feature_map, function, shapes
    return _shared(name, run, jit_compile=True)(matrix, *arguments)


def _shared(name, function, **options):
    """The `tf.function` of that name in this graph; made if there is none."""
    functions = _functions.setdefault(tf.compat.v1.get_default_graph(), {})
    if name not in functions:
        functions[name] = tf.function(function, autograph=False, **options)
    return functions[name]
