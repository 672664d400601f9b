"""Slices have the devices and the memory that the TPU compiler finds; redraws."""

import jax
import pytest
import tensorflow as tf

import keras_performer
from benchmarks.tpu import compiler, rows
from benchmarks.tpu.slices import SLICES, Slice
from benchmarks.tpu.steps import lower
from tests.tpu import checks


def too_large():
    def square(x):
        return tf.reduce_sum(tf.sort(tf.sort(x[:, None] * x, axis=0), axis=1))

    return lower(square, tf.TensorSpec((2**19,), tf.float32))


@pytest.mark.parametrize("name", SLICES)
def test_one_device_for_each_chip(name):
    chips = compiler.devices(SLICES[name])
    family, size = name.split("-")
    cores_in_name = 2 if family in ("v4", "v5p") else 1
    assert len(chips) == SLICES[name].replicas == int(size) / cores_in_name
    assert len({tuple(chip.coords) for chip in chips}) == len(chips)
    assert {chip.num_cores for chip in chips} == {cores_in_name}


@pytest.mark.parametrize("name", SLICES)
def test_the_memory_is_what_the_compiler_finds(name):
    row = rows.measure(too_large, SLICES[name])
    assert row["fits"] is False
    assert row["gib"] == 2048
    assert f"available HBM ({SLICES[name].gib_per_chip:.2f}G)" in row["refusal"]


def test_only_a_lack_of_memory_makes_a_row():
    module = """
    func.func @main() -> tensor<f32> {
      %0 = stablehlo.custom_call @unknown_to_tpus() : () -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    with pytest.raises(jax.errors.JaxRuntimeError, match="unknown_to_tpus"):
        rows.measure(lambda: module, SLICES["v5e-1"])


def test_memory_is_judged_by_its_sum():
    memory = compiler.Memory(
        arguments=4 * 2**30, temporaries=5 * 2**30, outputs=3 * 2**30, aliased=2**31
    )
    assert memory.total == 10 * 2**30
    assert Slice("v5e:2x2", 1, 10.6).fits(memory)
    assert not Slice("v5e:2x2", 1, 10.5).fits(memory)  # less than 5 % are left


@pytest.mark.parametrize("feature_map", ["softmax", "relu"])
@pytest.mark.parametrize("name", ["v5e-1", "v6e-8", "v4-8", "v5p-8"])
def test_a_redraw_compiles(name, feature_map):
    layer = keras_performer.PerformerAttention(8, 64, feature_map=feature_map, seed=1)
    layer.build((None, None, 512))

    @tf.function
    def redraw():
        layer.redraw_features()

    stablehlo = lower(redraw)
    lowered = compiler.text_of(stablehlo)
    assert checks.float64_operations(lowered) == []
    # Inputs are the seed and the count; outputs are the count and the matrix.
    assert checks.arguments(lowered)["i32"] == 2
    memory = compiler.compile_for(stablehlo, SLICES[name]).memory
    assert memory.outputs >= 4 * 256 * 64
