"""Calls of functions that are traced once for training, and optionally compiled.

In training, layers of a model share traced and compiled functions if shapes are equal.
"""

import weakref

import tensorflow as tf

# Private: the public API does not tell whether any tape records.
from tensorflow.python.eager import record

from keras_performer.ops.gradients import custom_gradient

# The functions of each graph, by computation and shapes. Graphs do not share them: a
# function keeps the objects that it was traced with, and differentiation changes it.
_functions: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def call(function, kernel, *arguments, jit_compile, inline=True):
    """Calls `function(kernel, *arguments)`, traced once per graph; XLA may compile it.

    Args:
        function: a function of a module, such as one pass of attention.
        kernel: a `Kernel`, or `None` for functions that need none.
        *arguments: nests of tensors, ints, bools and `None`.
        jit_compile: bool.
        inline: bool. If true, and no tape records, as in inference, the graph of the
            caller gets the operations of the function: LiteRT cannot convert a loop
            that two layers share. If false, or under a tape, the graph calls a
            function. TensorFlow optimizes it once, at its first call, and branches for
            rare inputs then cost almost nothing.
    """
    apart = record.could_possibly_record() or not inline
    shares = apart and not tf.executing_eagerly() and _has_identity(kernel)
    if not (jit_compile or shares):
        return function(kernel, *arguments)
    # one function for each shape: TensorFlow warns if a function is traced often
    shapes = [str(getattr(x, "shape", x)) for x in tf.nest.flatten(arguments)]
    options = {"jit_compile": True} if jit_compile else {}
    if apart:
        options["experimental_attributes"] = {"_noinline": True}
    shared = _shared(function, kernel, *shapes, **options)
    arguments = _parameters(kernel), *arguments
    if shares:
        arguments = _without_constants(arguments)
    return shared(*arguments)


def call_with_gradient(forward, backward, kernel, fixed, tensors, jit_compile):
    """Calls `forward`, whose gradient is `backward`, both as `call` does.

    Args:
        forward: function `(kernel, fixed, tensors)` that returns `(results, saved)`, a
            tuple of tensors and a nest of tensors.
        backward: function `(kernel, fixed, tensors, results, saved, dresults)` that
            returns the gradients of tensors, without `None`, and of `kernel.trained`.
        kernel: as in `call`.
        fixed: nest, as an argument of `call`; it has no gradient.
        tensors: list of tensors and `None`.
        jit_compile: bool.

    Returns:
        The results.
    """
    given = [x for x in tensors if x is not None]

    @custom_gradient
    def run(*inputs):
        own = kernel and kernel.with_trained(inputs[len(given) :])
        inputs = iter(inputs)
        every = [None if x is None else next(inputs) for x in tensors]
        arguments = own, fixed, every
        results, saved = call(forward, *arguments, jit_compile=jit_compile)

        def gradient(*dresults):
            given = *arguments, results, saved, dresults
            return call(backward, *given, jit_compile=jit_compile, inline=False)

        return results, gradient

    return run(*given, *(kernel.trained if kernel else []))


def _without_constants(arguments):
    """Returns equal arguments, none of which TensorFlow knows to be constant.

    For constant arguments TensorFlow optimizes a copy of the function for each call,
    in place of one for all calls. It does not fold an `IdentityN` of which any input
    varies.
    """
    entries = tf.nest.flatten(arguments)
    indices = [i for i, x in enumerate(entries) if tf.is_tensor(x)]
    for i, x in zip(indices, tf.identity_n([entries[i] for i in indices])):
        entries[i] = x
    return tf.nest.pack_sequence_as(arguments, entries)


def call_in_graph(function, kernel, *arguments, jit_compile):
    """Calls `function(kernel, *arguments)`, in a graph if it compiles parts of itself.

    In eager mode a tape would differentiate each compiled part, which XLA refuses.
    """
    if jit_compile and tf.executing_eagerly():
        return _shared(function, kernel)(_parameters(kernel), *arguments)
    return function(kernel, *arguments)


def _has_identity(kernel):
    """Returns True if the kernel can be compared with others, or is `None`."""
    try:
        return kernel is None or hash(kernel.identity()) is not None
    except TypeError:  # an attribute that is not hashable
        return False


def _parameters(kernel):
    return {} if kernel is None else kernel.parameters


def _outermost_graph():
    """Returns the graph of the traced function, also in its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while True:
        outer = getattr(graph, "outer_graph", None)
        if outer is None or not outer.building_function:
            return graph
        graph = outer


def _shared(function, kernel, *shapes, **options):
    """Returns the `tf.function` of equal kernels in this graph; makes a missing one."""
    functions = _functions.setdefault(_outermost_graph(), {})
    identity = None if kernel is None else kernel.identity()
    name = function, identity, shapes, tuple(options)
    if name not in functions:
        blank = kernel and kernel.blank()  # tensors would keep their graph alive

        def run(parameters, *arguments):
            copied = blank and blank.with_parameters(parameters)
            return function(copied, *arguments)

        functions[name] = tf.function(run, autograph=False, **options)
    return functions[name]
