"""Memory by length, of one layer of attention and of whole models on a chip."""

import keras
import pytest

from benchmarks.tpu import compiler, lengths, steps, table
from benchmarks.tpu.replicas import Replicas
from benchmarks.tpu.slices import SLICES, SLICES_OF_SEQUENCES
from examples import long_text
from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention
from tests.tpu import checks

# About two minutes each, except programs that the compiler refuses.
pytestmark = pytest.mark.slow

# Lengths for linear and for exact attention.
LENGTHS, EXACT_LENGTHS = (65536, 262144), (4096, 16384)
# Memory on the chip of a v5e, which the compiler fills first and does not count.
ON_CHIP = 2**27
MECHANISMS = {
    "exact_window": (PerformerAttention, {"exact_window": 64}),
    "taylor": (
        PerformerAttention,
        {"exact_window": 64, "feature_map": "taylor", "num_random_features": None},
    ),
    "local": (LocalAttention, {"sliding_window": 64}),
    "exact": (ExactAttention, {}),
}


def compiled_step(name, causal, length):
    """Compiles the training step of one layer of attention: `(lowered, Compiled)`."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    mechanism, options = MECHANISMS[name]
    strategy = Replicas(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(16, 64),
                mechanism(2, 32, causal=causal, **options),
                keras.layers.Dense(16, dtype="float32"),
            ]
        )
        model.build((1, length))
        model.compile("adam", "sparse_categorical_crossentropy")
    stablehlo = steps.lower_step(model, strategy, 1, length)
    compiled = compiler.compile_for(stablehlo, SLICES["v5e-1"])
    return compiler.text_of(stablehlo), compiled


def growth(name, causal, two_lengths, on_chip=0):
    """Returns the growth of memory between two lengths, and the programs."""
    programs = [compiled_step(name, causal, length) for length in two_lengths]
    less, more = (compiled.memory.temporaries + on_chip for _, compiled in programs)
    return more / less, programs


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["exact_window", "taylor", "local"])
def test_four_times_the_length_takes_some_four_times_the_memory(name, causal):
    ratio, programs = growth(name, causal, LENGTHS, ON_CHIP)
    assert ratio < 6
    for lowered, _ in programs:
        assert checks.float64_operations(lowered) == []


def test_exact_attention_takes_some_sixteen_times_the_memory():
    ratio, _ = growth("exact", True, EXACT_LENGTHS)
    assert ratio > 12


@pytest.mark.parametrize(("recompute", "log2_length"), [("block", 20), ("network", 24)])
def test_recomputing_fits(recompute, log2_length):
    row = lengths.compile_length(recompute, log2_length, "v5e-1")
    assert row["fits"], row
    # Ids and targets alone take four bytes each.
    assert row["memory"]["arguments"] > 8 * 2**log2_length


def test_a_sequence_cut_over_sixteen_chips_fits():
    row = lengths.compile_length("block", 24, "v5e-16")
    assert row["fits"], row
    # Ids and targets of a slice take four bytes each.
    assert row["memory"]["arguments"] > 8 * 2**20


def test_the_configuration_for_a_sequence_on_sixteen_chips_fits():
    path = table.CONFIGS / "v5e-16.yaml"
    config, slice_ = long_text.parse(["--config", str(path)]), SLICES_OF_SEQUENCES
    stablehlo = steps.step_on_slice(config, slice_["v5e-16"].replicas)
    lowered = compiler.text_of(stablehlo)
    assert checks.arguments(lowered)["1x1048576xi32"] == 2  # 2^24 tokens / 16
    assert checks.float64_operations(lowered) == []
    compiled = compiler.compile_for(stablehlo, slice_["v5e-16"])
    assert slice_["v5e-16"].fits(compiled.memory)
    # The program exchanges states of all slices and sums gradients.
    everyone = ",".join(map(str, range(16)))
    groups = checks.all_reduces(compiled.text)
    assert set(groups) == {f"{{{{{everyone}}}}}"}
    assert len(groups) > 2 * config.num_layers


@pytest.mark.parametrize(("recompute", "log2_length"), [("exact", 14), ("none", 18)])
def test_not_recomputing_does_not(recompute, log2_length):
    row = lengths.compile_length(recompute, log2_length, "v5e-1")
    assert not row["fits"]
    assert row["gib"] > row["available_gib"]
