"""Lists of operations in Keras' graphs, and of operations that TPUs cannot run."""

import collections
import inspect
import json
import pathlib

_OPS = json.loads((pathlib.Path(__file__).parent / "tpu_ops.json").read_text())
TPU_OPS = frozenset(_OPS["kernels"] + _OPS["markers"])


def run_by(function, iterator):
    """Returns the graph of Keras' train or test function."""
    # `function` itself reads the result, so it would run the graph
    inner = inspect.getclosurevars(function).nonlocals["multi_step_on_iterator"]
    return inner.get_concrete_function(iterator).graph


def cluster_ops(graph):
    """Counts the operations that TPU cores run, by op type.

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
                # counts each body once, also for several calls
                nodes += functions.pop(function.name, [])
    return ops


def without_tpu_kernel(ops):
    """Returns the operations that a TPU cannot run."""
    return set(ops) - TPU_OPS


def unfed_inputs(graph):
    """Returns functions with an input that is no argument, which cannot run."""
    return [
        function.signature.name
        for function in graph.as_graph_def().library.function
        if any(node.op == "Placeholder" for node in function.node_def)
    ]
