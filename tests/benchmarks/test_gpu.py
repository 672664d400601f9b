"""Programs for a GPU, run by XLA on this machine; `run.py` itself needs JAX."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from benchmarks import stablehlo
from benchmarks.gpu import cases, programs, report


def run(module, arguments, like):
    """Outputs of a program, with the shapes and types of `like`."""

    @tf.function(jit_compile=True)
    def call(*arguments):
        return gen_xla_ops.xla_call_module(
            args=arguments,
            version=9,
            module=module,
            Sout=[x.shape for x in like],
            Tout=[x.dtype for x in like],
            platforms=["CPU"],
        )

    return call(*arguments)


def test_variables_follow_the_input_in_the_order_of_the_program():
    matrix = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    bias, constant = tf.Variable([10.0, 20.0]), tf.constant([0.5, 0.25])

    def function(x):
        return [(x @ matrix + bias) * constant, bias - 1]

    x = tf.constant([[1.0, 0.0, 2.0]])
    module, arguments = stablehlo.lower_with_arguments(function, x)
    outputs = run(module, arguments, function(x))
    np.testing.assert_array_equal(outputs[0], [[10.5, 8.5]])
    np.testing.assert_array_equal(outputs[1], [9, 19])


@pytest.mark.slow
def test_a_program_gives_the_numbers_beside_it(tmp_path):
    sizes = {**cases.SMALL, "length": 20}
    case = cases.case("numbers", "exact", True, "float32", "full", **sizes)
    programs.write_all([case], tmp_path)
    written = json.loads((tmp_path / "programs.json").read_text())["programs"][0]
    with np.load(tmp_path / f"{written['file']}.npz") as known:
        arguments = [known[f"argument{i}"] for i in range(len(written["arguments"]))]
        expected = [known[name] for name in known if name.startswith("expected")]
    module = (tmp_path / f"{written['file']}.mlirbc").read_bytes()
    outputs = run(module, arguments, expected)
    assert len(expected) == 10  # the output, and gradients of x and eight weights
    for found, right in zip(outputs, expected):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)


def lowered(**options):
    """StableHLO of a layer, and how many arguments it has."""
    case = cases.case("numbers", "Performer", False, "float32", "full", **cases.SMALL)
    case |= options
    step, x, _ = cases.program({**case, "kind": "layer"})
    module, arguments = programs.lowered_as(case, step, x)
    return module, len(arguments)


@pytest.mark.slow
def test_blocks_and_precision_are_those_of_the_case(monkeypatch):
    def text(function, specs):
        ir = function.experimental_get_compiler_ir(*specs)
        return ir(stage="stablehlo", platform_name="CPU")

    monkeypatch.setattr(stablehlo, "_lowered", text)
    module, arguments = lowered(blocks="GPU")
    assert arguments == 10  # x, eight weights and the projection matrix
    assert "while" not in module
    assert "while" in lowered(blocks="CPU")[0]
    assert "HIGHEST" in module
    rounded = lowered(precision="default")[0]
    assert "HIGHEST" not in rounded and "DEFAULT" in rounded


def test_the_tables_are_those_of_the_results(tmp_path):
    for kind in cases.KINDS:
        shutil.copy(report.RESULTS / f"{kind}.json", tmp_path)
    report.main(["--results", str(tmp_path)])
    written = (tmp_path / "tables.md").read_text()
    assert written == (report.RESULTS / "tables.md").read_text()
