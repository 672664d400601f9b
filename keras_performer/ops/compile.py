"""Functions of a kernel and tensors: traced once for training, compiled if wished.

Layers of a model that trains share what is traced, and what XLA compiles, where shapes
agree.
"""

import weakref

import tensorflow as tf

# Private, as what is public does not tell of the tapes of others.
from tensorflow.python.eager import record

# The functions of a graph, by what they compute and the shapes. Not of the process: a
# function keeps what it was traced for, and what differentiates it changes it.
_functions: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def call(function, kernel, *arguments, jit_compile, inline=True):
    """`function(kernel, *arguments)`, traced once in a graph; XLA may compile it.

    Args:
        function: a function of a module, such as one pass of attention.
        kernel: a `Kernel`, or `None` for functions that need none.
        *arguments: nests of tensors, ints, bools and `None`.
        jit_compile: bool.
        inline: bool, whether the function becomes a part of the graph where no tape
            records, as in inference: LiteRT converts no loop that two layers share. If
            not, TensorFlow optimizes it once, at its first call: the forms for rare
            inputs then mostly cost nothing. Under a tape no function is inline.
    """
    apart = record.could_possibly_record() or not inline
    shares = apart and not tf.executing_eagerly() and _has_identity(kernel)
    if not (jit_compile or shares):
        return function(kernel, *arguments)
    # one function for each shape: TensorFlow warns where one has many
    shapes = [str(getattr(x, "shape", x)) for x in tf.nest.flatten(arguments)]
    options = {"jit_compile": True} if jit_compile else {}
    if apart:
        options["experimental_attributes"] = {"_noinline": True}
    shared = _shared(function, kernel, *shapes, **options)
    return shared(_parameters(kernel), *arguments)


def call_in_graph(function, kernel, *arguments):
    """`function(kernel, *arguments)` in a graph, which compiles parts of itself.

    Eagerly a tape would differentiate each compiled part by itself, which XLA refuses.
    """
    return _shared(function, kernel)(_parameters(kernel), *arguments)


def _has_identity(kernel):
    """True if kernels equal to this one can be told."""
    try:
        return kernel is None or hash(kernel.identity()) is not None
    except TypeError:  # an attribute that is not hashable
        return False


def _parameters(kernel):
    return {} if kernel is None else kernel.parameters


def _outermost_graph():
    """The graph of the function that is traced, also in its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while True:
        outer = getattr(graph, "outer_graph", None)
        if outer is None or not outer.building_function:
            return graph
        graph = outer


def _shared(function, kernel, *shapes, **options):
    """The `tf.function` for equal kernels in this graph; made if there is none."""
    functions = _functions.setdefault(_outermost_graph(), {})
    compiled = "jit_compile" in options
    name = function, None if kernel is None else kernel.identity(), shapes, compiled
    if name not in functions:
        blank = kernel and kernel.blank()  # tensors would keep their graph alive

        def run(parameters, *arguments):
            copied = blank and blank.with_parameters(parameters)
            return function(copied, *arguments)

        functions[name] = tf.function(run, autograph=False, **options)
    return functions[name]
