"""Layers that we measure ours against, and readers of programs."""

import numpy as np
import pytest

from benchmarks.contenders import ours
from benchmarks.tpu import rows
from tests.tpu import checks


@pytest.mark.parametrize("contender", ["softmax", "key-value cache"])
def test_modes_decode_the_same(contender):
    case = {"contender": contender, "part": "decoding", "position": 5, "batch": 2}
    by_graph, by_xla = (
        ours.program({**case, "tokens": 3, "mode": mode})() for mode in ("graph", "xla")
    )
    np.testing.assert_allclose(by_graph, by_xla, atol=1e-5)
    assert np.abs(by_graph).max() > 0.01


def test_generated_tokens_have_their_shape():
    sizes = dict(vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=8)
    case = dict(part="generate", prompt_length=3, new_tokens=4, batch=2, sizes=sizes)
    ours.program(case)()  # it checks the shape of its tokens


SENTENCES = {
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (34.19G) exceeds available HBM (15.75G).": 34.19,
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
    "space hbm. Used 1.50T of 15.75G hbm. Exceeded hbm capacity by 1.48T.": 1536.0,
    "RESOURCE_EXHAUSTED: for another reason": None,
}
LOWERED = """
  func.func @main(%arg0: tensor<1x8xi32>, %arg1: tensor<2x3xf32>, %arg2: tensor<2x3xf32>
 {mhlo.x = 1}) -> (tensor<2x3xf32>) {
    %1 = stablehlo.dot_general %a, %b, dims = [1] x [0] : (tensor<4x2xbf16>, tensor<2xbf16>) -> tensor<4xbf16>
    %2 = stablehlo.dot %a, %b : (tensor<4x2xf32>, tensor<2xbf16>) -> tensor<4xf32>
    %6 = stablehlo.dot %a, %b, precision = [DEFAULT, DEFAULT] : (tensor<4x2xbf16>, tensor<2xbf16>) -> tensor<4xbf16>
    %3:2 = stablehlo.while(%iterArg = %1) : tensor<i32>
    %4 = stablehlo.convert %2 : (tensor<4xf32>) -> tensor<4xf64>
    %5 = stablehlo.constant dense<1.0> : tensor<f64>
"""  # noqa: E501
COMPILED = """
  %a.1 = bf16[4,2]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[2]{0} parameter(1)
  %c = f32[2]{0} parameter(2)
  %convolution.1 = f32[4]{0} convolution(%a.1, %b), window={}, dim_labels=bf_io->bf
  %dot.3 = f32[] dot(%c, %c), lhs_contracting_dims={0}
  ROOT %dot.2 = f32[4]{0} dot(%a.1, %c), lhs_contracting_dims={1}
  %while.7 = (s32[], f32[4]{0}) while(%tuple), condition=%cond, body=%body
  %all-reduce.1 = (f32[2], f32[4]) all-reduce(%x, %y), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
"""  # noqa: E501


def test_programs_of_the_tpu_compiler_are_read_right():
    assert {s: rows.refused_gib(s) for s in SENTENCES} == SENTENCES
    assert checks.arguments(LOWERED) == {"1x8xi32": 1, "2x3xf32": 2}
    assert checks.bfloat16_products_lowered(LOWERED) == 2
    assert checks.loops_lowered(LOWERED) == 1
    doubles = [line.split()[0] for line in checks.float64_operations(LOWERED)]
    assert doubles == ["%4", "%5"]
    assert checks.bfloat16_products(COMPILED) == 1
    assert checks.loops(COMPILED) == 1
    assert checks.all_reduces(COMPILED) == ["{{0,1},{2,3}}"]
