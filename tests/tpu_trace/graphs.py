"""Lists the operations of Keras' graphs, and those that a TPU cannot run."""

import collections
import inspect
import json
import pathlib

_OPS = json.loads((pathlib.Path(__file__).parent / "tpu_ops.json").read_text())
TPU_OPS = frozenset(_OPS["kernels"] + _OPS["markers"])


def run_by(function, iterator):
    """The graph of Keras' train or test function."""
    # `function` itself looks at the result, which needs the graph to be run
    inner = inspect.getclosurevars(function).nonlocals["multi_step_on_iterator"]
    return inner.get_concrete_function(iterator).graph


def cluster_ops(graph):
    """Operations that the TPU cores run: op type to number of nodes.

    Args:
        graph: of a function that contains `strategy.run`, at any depth.
    """
    definition = graph.as_graph_def()
    functions = {f.signature.name: f.node_def for f in definition.library.function}
    nodes = [
        node
        for body in (definition.node, *functions.values())
        for node in body
        if "_tpu_replicate" in node.attr
    ]
    ops = collections.Counter()
    while nodes:
        node = nodes.pop()
        ops[node.op] += 1
        for value in node.attr.values():
            for function in (value.func, *value.list.func):
                # each body once, however often it is called
                nodes += functions.pop(function.name, [])
    return ops


def without_tpu_kernel(ops):
    """Operations that a TPU cannot run."""
    return set(ops) - TPU_OPS


def unfed_inputs(graph):
    """Functions with an input that is no argument: they cannot be run."""
    return [
        function.signature.name
        for function in graph.as_graph_def().library.function
        if any(node.op == "Placeholder" for node in function.node_def)
    ]
