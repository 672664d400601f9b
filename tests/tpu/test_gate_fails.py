"""The gate stops everything that must not pass."""

import dataclasses

import jax
import keras
import pytest
import tensorflow as tf

import keras_performer
from benchmarks.tpu import checks, compiler, rows, steps, table
from benchmarks.tpu.replicas import Replicas
from benchmarks.tpu.slices import SLICES


def lowered_step(function=tf.identity, num_replicas=2, dtype_policy="mixed_bfloat16"):
    """StableHLO of the training step of a small model with `function` inside."""
    keras.config.set_dtype_policy(dtype_policy)
    strategy = Replicas(num_replicas)
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
    return steps.lower_step(model, strategy, 1, 256)


def text(**kwargs):
    return compiler.text_of(lowered_step(**kwargs))


def host_callback(x):
    y = tf.py_function(lambda value: value, [x], x.dtype)
    return tf.ensure_shape(y, x.shape)


def in_float64(x):
    return tf.cast(tf.cast(x, tf.float64) * tf.constant(1.5, tf.float64), x.dtype)


def test_a_host_callback_does_not_lower():
    with pytest.raises(Exception, match="EagerPyFunc"):
        lowered_step(host_callback)


def test_a_float64_constant_is_noticed():
    assert checks.float64_operations(text()) == []
    assert checks.float64_operations(text(function=in_float64))


def test_float32_products_are_noticed():
    assert checks.bfloat16_products_lowered(text()) >= 4 * 3
    assert checks.bfloat16_products_lowered(text(dtype_policy="float32")) == 0


def test_a_missing_all_reduce_is_noticed():
    slice_ = SLICES["v5e-4"]
    reduced = compiler.compile_for(lowered_step(num_replicas=4), slice_)
    assert set(checks.all_reduces(reduced.text)) == {"{{0,1,2,3}}"}
    forgotten = compiler.compile_for(lowered_step(num_replicas=1), slice_)
    assert checks.all_reduces(forgotten.text) == []


@pytest.mark.slow
def test_exact_attention_is_refused_for_its_memory():
    # Of one image for each replica: the smallest step there is.
    slice_ = SLICES["v5e-4"]
    config = dataclasses.replace(table.read("v5e-4"), batch_size=slice_.replicas)
    row = rows.measure(
        lambda: steps.training_step(config, slice_.replicas, exact=True), slice_
    )
    assert "RESOURCE_EXHAUSTED" in row["refusal"]
    assert row["gib"] > slice_.gib_per_chip


def test_only_a_lack_of_memory_makes_a_row():
    module = """
    func.func @main() -> tensor<f32> {
      %0 = stablehlo.custom_call @unknown_to_tpus() : () -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    with pytest.raises(jax.errors.JaxRuntimeError, match="unknown_to_tpus"):
        rows.measure(lambda: module, SLICES["v5e-1"])
