"""A redraw of random features, compiled for every kind of chip."""

import pytest
import tensorflow as tf

import keras_performer
from benchmarks.stablehlo import lower
from benchmarks.tpu import compiler
from benchmarks.tpu.slices import SLICES
from tests.tpu import checks


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
