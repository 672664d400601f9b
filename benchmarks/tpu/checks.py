"""Checks of a training step, read from the text of the program.

`lowered` is StableHLO, as from `compiler.text_of`; `compiled` is the text of a
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
    """Lines of StableHLO with a float64 tensor; TPUs have none and emulate it."""
    return [line for line in lowered.splitlines() if re.search(r"[<x]f64>", line)]


def loops_lowered(lowered):
    """The number of loops in StableHLO."""
    return lowered.count("stablehlo.while")


def loops(compiled):
    """The number of loops that the compiler kept."""
    return len(re.findall(r" while\(", compiled))


def bfloat16_products_lowered(lowered):
    """The number of matrix products of bfloat16 with bfloat16 in StableHLO."""
    return len(_PRODUCT_LOWERED.findall(lowered))


def bfloat16_products(compiled):
    """The number of them that the TPU executes.

    More than in StableHLO: by default the compiler rounds float32 factors, too.
    """
    types = dict(_TYPE.findall(compiled))
    products = _PRODUCT.findall(compiled)
    return sum(types.get(a) == types.get(b) == "bf16" for a, b in products)


def all_reduces(compiled):
    """The replica groups of each all-reduce, as in `["{{0,1,2,3}}"]`."""
    return _ALL_REDUCE.findall(compiled)


def arguments(lowered):
    """Number of arguments of each type, such as `2x3xf32`, in the program."""
    main = re.search(r"func @main\((.*)", lowered).group(1).split(") -> ")[0]
    return collections.Counter(re.findall(r"%arg\d+: tensor<([^>]*)>", main))
