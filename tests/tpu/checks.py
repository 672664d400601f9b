"""Checks of a training step by the text of its program.

`lowered` is StableHLO from `compiler.text_of`; `compiled` is the text of a
`compiler.Compiled`.
"""

import collections
import re

_TYPE = re.compile(r"^\s*(?:ROOT )?(%[\w.-]+) = (\w+)\[", re.MULTILINE)
_PRODUCT = re.compile(r" (?:convolution|dot)\((%[\w.-]+), (%[\w.-]+)\)")
_PRODUCT_LOWERED = re.compile(
    r"stablehlo\.dot(?:_general)? .*: \(tensor<[^>]*bf16>, tensor<[^>]*bf16>\)"
)
_ALL_REDUCE = re.compile(r" all-reduce(?:-start)?\(.*replica_groups=(\{\{.*?\}\}|\S+),")


def float64_operations(lowered):
    """Returns lines of StableHLO with float64 tensors, which TPUs must emulate."""
    return [line for line in lowered.splitlines() if re.search(r"[<x]f64>", line)]


def loops_lowered(lowered):
    """Returns the number of loops in StableHLO."""
    return lowered.count("stablehlo.while")


def loops(compiled):
    """Returns the number of loops that the compiler kept."""
    return len(re.findall(r" while\(", compiled))


def bfloat16_products_lowered(lowered):
    """Returns the number of matrix products of two bfloat16 factors in StableHLO."""
    return len(_PRODUCT_LOWERED.findall(lowered))


def bfloat16_products(compiled):
    """Returns the number of products of two bfloat16 factors that the TPU executes.

    There are more than in StableHLO: by default the compiler also rounds float32.
    """
    types = dict(_TYPE.findall(compiled))
    products = _PRODUCT.findall(compiled)
    return sum(types.get(a) == types.get(b) == "bf16" for a, b in products)


def all_reduces(compiled):
    """Returns the replica groups of each all-reduce, as in `["{{0,1,2,3}}"]`."""
    return _ALL_REDUCE.findall(compiled)


def arguments(lowered):
    """Counts the program's arguments of each type, such as `2x3xf32`."""
    main = re.search(r"func @main\((.*)", lowered).group(1).split(") -> ")[0]
    return collections.Counter(re.findall(r"%arg\d+: tensor<([^>]*)>", main))
