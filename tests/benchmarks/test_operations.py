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
        for step, shapes, counts in operations.PRODUCTS.values()
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
def test_the_last_step_uses_the_second_inputs(jit):
    run = operations.program(*operations.alternating(tf.exp, [(2, 3)]), jit)
    last = tf.random.stateless_normal((2, 2, 3), seed=(0, 0))[1]
    np.testing.assert_allclose(run(), np.exp(last), rtol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_each_step_replaces_an_element_by_that_of_the_last_result(jit):
    run = operations.program(*operations.replacing(lambda x: x + 1e-3, [(2, 3)]), jit)
    x = tf.random.stateless_normal((2, 3), seed=(0, 0)).numpy()
    for _ in range(operations.STEPS):
        result = x + np.float32(1e-3)
        x[0, 0] = np.clip(result[0, 0], -1, 1)
    assert -1 < result[0, 0] < 1
    np.testing.assert_allclose(run(), result, atol=1e-5)


def test_the_faster_loop_and_mode_count(monkeypatch):
    def milliseconds(programs):
        given = {"product": 7.0}
        for key in programs:
            if key[-1] in operations.LOOPS:
                name, jit, loop = key
                slow = 3.0 if loop is operations.alternating else 0.0
                given[key] = (64.0 if jit else 32.0) + slow
            elif key != "product":
                given[key] = 5.0 if key[1] else 6.0
        return given

    monkeypatch.setattr(operations, "in_turns", milliseconds)
    monkeypatch.setattr(operations, "program", lambda *arguments: None)
    monkeypatch.setattr(operations, "keras_program", lambda case: None)
    monkeypatch.setattr(operations, "STEPS", 16 * operations.BLOCKS)
    found, attention, product = operations.measure()
    assert found == dict.fromkeys(operations.OPERATIONS, [2.0, 4.0, 2.0])
    assert attention == dict.fromkeys(operations.FORMS, [6.0, 5.0, 5.0])
    assert product == 7.0


def test_totals_weigh_each_time_by_how_often_it_is_needed():
    times = {name: [0.0, 0.0, 0.0] for name in operations.OPERATIONS}
    times["project"], times["exp"] = [1.0, 10.0, 1.0], [0.5, 0.0, 0.0]
    found = operations.totals(times)["causal, training"]
    assert tuple(found) == (4 * 1.0 + 8 * 0.5, 4 * 10.0, 4 * 1.0)


@pytest.mark.slow
def test_the_command_measures_writes_and_prints(tmp_path, monkeypatch, capsys):
    small = {
        name: (step, [tuple(min(n, 8) for n in shape) for shape in shapes], counts)
        for name, (step, shapes, counts) in operations.OPERATIONS.items()
        if name in ("exp", "project")
    }
    monkeypatch.setattr(operations, "OPERATIONS", small)
    # the last has the largest graphs, and goes the same way through the table
    monkeypatch.setattr(operations, "FORMS", operations.FORMS[:3])
    monkeypatch.setattr(operations, "ROUNDS", 3)
    monkeypatch.setattr(operations, "LENGTH", 32)
    monkeypatch.setattr(operations.worker, "pin", lambda threads: None)
    monkeypatch.setattr(tensorflow_programs, "start", lambda threads: None)
    monkeypatch.setattr("sys.argv", ["operations", "--output", str(tmp_path)])
    operations.main()
    _, _, product, *rest = capsys.readouterr().out.splitlines()
    assert numbers(product)[-1] > 0
    project, exp = (numbers(line) for line in rest[:2])
    for graph, xla, faster in (project, exp):
        assert 0 < faster == min(graph, xla)
    expected = small["project"][2][2] * project[0] + small["exp"][2][2] * exp[0]
    assert numbers(rest[-2])[0] == pytest.approx(expected, abs=0.09)  # 6 * 0.005 + ...
    written = json.loads((tmp_path / "operations.json").read_text())
    assert written["machine"]["threads"] == 2
    assert list(written["shares"]) == list(operations.FORMS)
    for line, share in zip(rest[2::2], written["shares"].values(), strict=True):
        assert numbers(line)[1::2] == [round(x, 2) for x in share.values()]
        assert share["faster"] >= max(share["graph"], share["XLA"])


def numbers(line):
    return [float(x) for x in re.findall(r"\d+\.\d+", line)]


def test_the_share_of_operations_as_fast_as_a_large_product_is_one():
    products = 2 * 4096 * 8 * 3 * 256 * 64  # bidirectional, forward
    large = 1e3 * 2 * 2048**3 / 1e12  # milliseconds at 1 TFLOP/s
    total = np.array([1, 2]) * 1e3 * products / 1e12
    found = operations.shares("bidirectional, forward", total, large)
    np.testing.assert_allclose(found, [1, 0.5])
