import json
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import floor, operations, tensorflow_programs


@pytest.mark.parametrize("index, form", list(enumerate(operations.FORMS)))
def test_products_are_those_of_the_arithmetic_floor(index, form):
    total = sum(
        counts[index] * multiplications(step, shapes)
        for name, (step, shapes, counts) in operations.OPERATIONS.items()
        if name != "exp"
    )
    attends, step = form.split(", ")
    case = {
        "contender": "softmax",
        "form": attends,
        "step": step,
        "part": "attention",
        "length": operations.TOKENS,
    }
    assert 2 * total == floor.operations(case)


def multiplications(step, shapes):
    # without the column of ones beside the values, which the floor does not count
    shapes = [[64 if dim == 65 else dim for dim in shape] for shape in shapes]
    product = step(*(tf.zeros(shape) for shape in shapes))
    batch = math.prod(product.shape[:-2])
    a, b, c = (math.prod(shape[-2:]) for shape in (*shapes, product.shape))
    return batch * math.isqrt(a * b * c)  # sides m, k, n: (m k)(k n)(m n)


@pytest.mark.parametrize("jit", [False, True])
def test_alternating_inputs_end_with_the_second(jit):
    blocks, inputs = operations.alternating(tf.exp, [(2, 3)])
    run = operations.program(blocks, inputs, jit)
    last = tf.random.stateless_normal((2, 2, 3), seed=(0, 0))[1]
    np.testing.assert_allclose(run(), np.exp(last), rtol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_a_replaced_element_is_of_the_last_result(jit):
    blocks, inputs = operations.replacing(tf.matmul, [(2, 3), (3, 4)])
    run = operations.program(blocks, inputs, jit)
    x, y = (
        tf.random.stateless_normal(shape, seed=(0, index)).numpy()
        for index, shape in enumerate([(2, 3), (3, 4)])
    )
    for _ in range(operations.BLOCKS):
        product = x @ y
        x[0, 0] = np.clip(product[0, 0], -1, 1)
    np.testing.assert_allclose(run(), product, rtol=1e-5)


def test_totals_weigh_each_time_by_how_often_it_is_needed():
    times = {name: [0.0, 0.0, 0.0] for name in operations.OPERATIONS}
    times["project"], times["exp"] = [1.0, 10.0, 1.0], [0.5, 0.0, 0.0]
    found = operations.totals(times)["causal, training"]
    assert tuple(found) == (4 * 1.0 + 8 * 0.5, 4 * 10.0, 4 * 1.0)


def test_the_command_measures_writes_and_prints(tmp_path, monkeypatch, capsys):
    small = {
        name: (step, [tuple(min(n, 8) for n in shape) for shape in shapes], counts)
        for name, (step, shapes, counts) in operations.OPERATIONS.items()
        if name in ("exp", "project")
    }
    monkeypatch.setattr(operations, "OPERATIONS", small)
    monkeypatch.setattr(operations, "ROUNDS", 3)
    monkeypatch.setattr(operations, "LENGTH", 32)
    monkeypatch.setattr(tensorflow_programs, "start", lambda threads: None)
    monkeypatch.setattr("sys.argv", ["operations", "--output", str(tmp_path)])
    operations.main()
    _, _, product, *rest = capsys.readouterr().out.splitlines()
    project, exp = (numbers(line)[-3:] for line in rest[:2])
    for graph, xla, faster in (project, exp):
        assert 0 < faster == min(graph, xla)
    written = json.loads((tmp_path / "operations.json").read_text())
    assert written["machine"]["threads"] == 2
    assert list(written["shares"]) == list(operations.FORMS)
    pairs = zip(rest[2::2], rest[3::2], strict=True)
    for (total, attention), share in zip(pairs, written["shares"].values()):
        found = numbers(total)  # of each mode milliseconds and share
        assert found[1::2] == [round(x, 2) for x in share.values()]
        for sums, milliseconds, times in zip(
            found[::2], numbers(attention)[::2], numbers(attention)[1::2]
        ):
            assert times == pytest.approx(milliseconds / sums, rel=0.1)
    counts = small["project"][2][3], small["exp"][2][3]
    expected = counts[0] * project[0] + counts[1] * exp[0]
    assert numbers(rest[-2])[0] == pytest.approx(expected, abs=0.1)
    assert numbers(product)[-1] > 0


def numbers(line):
    return [float(x) for x in re.findall(r"\d+\.\d+", line)]


def test_the_share_of_operations_as_fast_as_a_large_product_is_one():
    products = 2 * 4096 * 8 * 3 * 256 * 64  # bidirectional, forward
    large = 1e3 * 2 * 2048**3 / 1e12  # milliseconds at 1 TFLOP/s
    total = np.array([1, 2]) * 1e3 * products / 1e12
    found = operations.shares("bidirectional, forward", total, large)
    np.testing.assert_allclose(found, [1, 0.5])
