"""How large the tensors of a training step are, read from its graph."""

import tensorflow as tf


def largest_tensor(layer, shape, **call):
    """Elements of the largest tensor of a call of a layer and of its gradients.

    Args:
        layer: a layer.
        shape: the shape of its input.
        **call: further arguments of the call.
    """
    layer.build(shape)
    weights = layer.trainable_weights

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x, **call)))
        return tape.gradient(loss, [x, *(weight.value for weight in weights)])

    graph = step.get_concrete_function(tf.TensorSpec(shape, layer.compute_dtype)).graph
    sizes = [
        x.shape.num_elements()
        for graph in _with_those_inside(graph)
        for op in graph.get_operations()
        for x in op.outputs
        if x.dtype.is_floating
    ]
    return max(size for size in sizes if size is not None)


def _with_those_inside(graph):
    """A graph and those of the functions, loops and branches in it."""
    yield graph
    for op in graph.get_operations():
        for attribute in op.node_def.attr.values():
            names = [attribute.func.name, *(x.name for x in attribute.list.func)]
            for name in filter(None, names):
                yield from _with_those_inside(graph._get_function(name).graph)
