"""What a function would cost, read from its graph."""

import tensorflow as tf


def largest_tensor(function, shapes, dtype="float32"):
    """The number of elements of the largest tensor that a function makes.

    Args:
        function: function of tensors.
        shapes: list of static shapes of the tensors.
    """
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    return max(_sizes(concrete.graph))


def _sizes(graph):
    """Numbers of elements of the tensors of a graph and of all that it calls."""
    for op in graph.get_operations():
        if op.type == "Placeholder":
            continue  # what the graph that calls this one made
        for x in op.outputs:
            if x.dtype not in (tf.variant, tf.resource):
                assert x.shape.is_fully_defined(), (op.name, x.shape)
                yield x.shape.num_elements()
    for name in graph._functions:
        yield from _sizes(graph._get_function(name).graph)


def kept_for_gradients(function, shapes, dtype="float32"):
    """The shapes of all tensors of the forward pass that gradients read.

    Args:
        function: function of tensors. Its inputs are not counted.
        shapes: list of static shapes of the tensors.
    """

    def source(x):
        while x.op.type in ("Identity", "IdentityN"):
            x = x.op.inputs[x.value_index]
        return x

    kept = []

    @tf.function(autograph=False)
    def step(*inputs):
        graph = tf.compat.v1.get_default_graph()
        output = function(*inputs)
        forward = set(graph.get_operations())
        gradients = tf.gradients(output, inputs, tf.ones_like(output))
        later = (op for op in graph.get_operations() if op not in forward)
        read = {x.name: x for op in later for x in map(source, op.inputs)}
        given = {x.name for x in inputs}
        kept.extend(
            x.shape for x in read.values() if x.op in forward and x.name not in given
        )
        return gradients

    step.get_concrete_function(*(tf.TensorSpec(shape, dtype) for shape in shapes))
    return kept
