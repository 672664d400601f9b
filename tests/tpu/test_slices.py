"""Slices have the devices and the memory that the TPU compiler finds."""

import pytest
import tensorflow as tf

from benchmarks.stablehlo import lower
from benchmarks.tpu import compiler, rows
from benchmarks.tpu.slices import SLICES, Slice


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


def test_memory_is_judged_by_its_sum():
    memory = compiler.Memory(
        arguments=4 * 2**30, temporaries=5 * 2**30, outputs=3 * 2**30, aliased=2**31
    )
    assert memory.total == 10 * 2**30
    assert Slice("v5e:2x2", 1, 10.6).fits(memory)
    assert not Slice("v5e:2x2", 1, 10.5).fits(memory)  # less than 5 % are left
