"""Costs of a function, read from its graph or counted while it runs."""

import math

import tensorflow as tf
from tensorflow.python.framework import op_callbacks

NOT_NUMBERS = tf.variant, tf.resource, tf.string


def kept_for_gradients(function, shapes):
    """Returns the shapes of all tensors of the forward pass that gradients read.

    Args:
        function: function of tensors. Its inputs are not counted.
        shapes: list of static shapes of the tensors, which are float32.
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

    step.get_concrete_function(*map(tf.TensorSpec, shapes))
    return kept


class Work:
    """Work of a function that runs eagerly, summed over its operations.

    It counts all rounds of loops, which graphs and XLA's analysis do not tell.

    Attributes:
        numbers: int, numbers in the outputs of operations; for products of matrices
            instead two for each multiplication.
        largest: int, elements of the largest tensor.
    """

    def __init__(self, function, *args):
        self.numbers = self.largest = 0
        op_callbacks.add_op_callback(self._add)
        try:
            function(*args)
        finally:
            op_callbacks.remove_op_callback(self._add)

    def _add(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        assert graph is None, "a graph, whose loops would count once"
        shapes = [x.shape for x in outputs if x.dtype not in NOT_NUMBERS]
        sizes = [shape.num_elements() for shape in shapes]
        self.largest = max(self.largest, *sizes, 0)
        kind = tf.compat.as_str(op_type)
        attrs = {tf.compat.as_str(x): y for x, y in zip(attrs[::2], attrs[1::2])}
        if kind in ("MatMul", "BatchMatMulV2"):
            rows_first = attrs.get("transpose_a") or attrs.get("adj_x")
            sizes = [2 * sizes[0] * inputs[0].shape[-2 if rows_first else -1]]
        elif kind == "Einsum":
            letters = tf.compat.as_str(attrs["equation"]).split("->")[0].split(",")
            assert "..." not in letters[0]
            lengths = {}
            for names, x in zip(letters, inputs):
                lengths.update(zip(names, x.shape))
            sizes = [2 * math.prod(lengths.values())]
        self.numbers += sum(sizes)
