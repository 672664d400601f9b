"""The gate finds all faults of programs."""

import jax
import keras
import pytest
import tensorflow as tf

import keras_performer
from benchmarks.tpu import compiler, rows, steps
from benchmarks.tpu.replicas import Replicas
from benchmarks.tpu.slices import SLICES
from tests.tpu import checks


def text(function=tf.identity, dtype_policy="mixed_bfloat16"):
    """Returns the StableHLO of a small model's training step with `function` inside."""
    keras.config.set_dtype_policy(dtype_policy)
    strategy = Replicas(2)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(16, 32),
                keras_performer.PerformerAttention(2, 16, causal=True),
                keras.layers.Lambda(function),
                keras.layers.Dense(16, dtype="float32"),
            ]
        )
        model.build((1, 256))
        model.compile("adam", "sparse_categorical_crossentropy")
    return compiler.text_of(steps.lower_step(model, strategy, 1, 256))


def in_float64(x):
    return tf.cast(tf.cast(x, tf.float64) * tf.constant(1.5, tf.float64), x.dtype)


def test_a_float64_constant_is_noticed():
    assert checks.float64_operations(text()) == []
    assert checks.float64_operations(text(function=in_float64))


def test_float32_products_are_noticed():
    assert checks.bfloat16_products_lowered(text()) >= 4 * 3
    assert checks.bfloat16_products_lowered(text(dtype_policy="float32")) == 0


def test_only_a_lack_of_memory_makes_a_row():
    module = """
    func.func @main() -> tensor<f32> {
      %0 = stablehlo.custom_call @unknown_to_tpus() : () -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    with pytest.raises(jax.errors.JaxRuntimeError, match="unknown_to_tpus"):
        rows.measure(lambda: module, SLICES["v5e-1"])
