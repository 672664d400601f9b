"""Rounding the factors of matrix products has its cost, and is emulated."""

import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import precision
from keras_performer import ops


def percents(name, causal, std, length=512, part=slice(None)):
    """Errors in percent, `[output or gradient, what is rounded]`, of heads of 16."""
    found = precision.errors(0, name, causal, 16, std, length, part)
    names = ("features", *precision.ROUNDED)
    return {key: 100 * np.array(value) for key, value in zip(names, found)}


def test_bfloat16_keeps_eight_bits():
    x = [1 + 2**-7, 1 + 2**-9, -3 - 2**-5, 1e-30]
    rounded = precision.bfloat16(tf.constant(x, tf.float32))
    np.testing.assert_allclose(rounded[:3], [1 + 2**-7, 1, -3 - 2**-5], rtol=0)
    np.testing.assert_allclose(rounded[3], 1e-30, rtol=2**-8)


@pytest.mark.parametrize(
    ("which", "expected"),
    [("none", (1, 1)), ("projection", (0, 1)), ("others", (1, 0)), ("all", (0, 0))],
)
def test_both_factors_are_rounded_where_they_should_be(which, expected):
    one, tiny = tf.ones((1, 1)), tf.fill((1, 1), tf.constant(2.0**-9))
    with precision.rounded_products(which):
        flat = [tf.matmul(1 + tiny, one) - 1, tf.matmul(one, 1 + tiny) - 1]
        batched = [tf.matmul((1 + tiny)[None], one[None]) - 1]
    assert [float(x[0, 0]) * 2**9 for x in flat] == [expected[0]] * 2
    assert float(batched[0][0, 0, 0]) * 2**9 == expected[1]


BOUNDS = {0.5: (0.3, 0.8), 1.0: (1.2, 2.0), 3.0: (2.2, 2.8)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "causal", "std"), [("softmax", True, 0.5), ("favor+", False, 1.0)]
)
def test_rounded_products_cost_little_beside_random_features(name, causal, std):
    output, gradient = BOUNDS[std]
    error = percents(name, causal, std)
    print(error)
    assert (error["none"] < 1e-3).all()
    # Half of the bound at least: otherwise nothing was rounded.
    assert 0.3 * output < error["all"][0] < output
    assert 0.3 * gradient < error["all"][1] < gradient
    assert (error["all"] < 0.05 * error["features"]).all()


def test_the_command_prints_a_row_of_each_case(capsys, monkeypatch):
    monkeypatch.setattr(precision, "CASES", precision.CASES[:1])
    precision.main("--length 64 --long 128 --draws 1".split())
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("| softmax | bidirectional | 16 | 0.5 | ")
    assert [line.split(" | ")[:2] for line in lines[-6:]] == [
        [f"| {name}", part]
        for name in ("softmax", "favor+", "relu")
        for part in ("first", "last")
    ]


def test_switch_asks_for_the_highest_precision_of_every_product():
    """The documentation names this switch for float32 products on a TPU."""
    x = tf.zeros((1, 64, 1, 8))
    kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(16, 8, (0, 1)))

    def gradients(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output, _ = ops.causal_attention(query, key, value, kernel)
        return tape.gradient(output, (query, key, value))

    def products():
        compiled = tf.function(gradients, jit_compile=True, autograph=False)
        program = compiled.experimental_get_compiler_ir(x, x, x)(stage="hlo")
        return re.findall(r"^.* dot\(.*$", program, flags=re.MULTILINE)

    default = products()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        exact = products()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)
    assert len(exact) == len(default) > 10
    assert not any("highest" in product for product in default)
    assert all("operand_precision={highest,highest}" in product for product in exact)
