"""The training step of every file in `tpu_configs/`, compiled for its slice."""

import types

import pytest

from benchmarks.tpu import compiler, steps, table
from benchmarks.tpu.slices import SLICES
from tests.tpu import checks

# About 100 seconds for each configuration.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=SLICES)
def step(request):
    config, slice_ = table.read(request.param), SLICES[request.param]
    stablehlo = steps.training_step(config, slice_.replicas)
    compiled = compiler.compile_for(stablehlo, slice_)
    return types.SimpleNamespace(
        config=config,
        slice=slice_,
        lowered=compiler.text_of(stablehlo),
        compiled=compiled.text,
        memory=compiled.memory,
    )


def test_it_is_the_training_step_of_the_paper(step):
    arguments = checks.arguments(step.lowered)
    images = step.config.batch_size // step.slice.replicas
    assert step.config.batch_size == images * step.slice.replicas
    assert arguments[f"{images}x12288xi32"] == 2
    # The random features are variables, so that redraws work, and not constants.
    assert arguments["256x64xf32"] == step.config.num_layers == 6
    # Each feed-forward layer has a weight and AdamW's two moments.
    assert arguments["512x2048xf32"] == 3 * step.config.num_layers
    # Dropout counts its calls in variables.
    assert step.config.dropout == 0.1 and arguments["2xi64"] > 0


def test_it_fits_the_chip(step):
    assert step.slice.fits(step.memory)
    # The program updates variables in place, so they count once.
    assert step.memory.aliased > 0.99 * step.memory.outputs
    # The model is large: it uses at least a quarter of the chip.
    assert step.memory.total > 0.25 * step.slice.gib_per_chip * 2**30


def test_it_has_no_float64(step):
    assert checks.float64_operations(step.lowered) == []


def test_its_loops_over_chunks_are_kept(step):
    # One forward and one backward loop in every layer.
    assert checks.loops_lowered(step.lowered) >= 2 * step.config.num_layers
    assert checks.loops(step.compiled) >= checks.loops_lowered(step.lowered)


def test_it_multiplies_in_bfloat16(step):
    # Six dense layers in a block, each with a forward product and two for gradients.
    products = checks.bfloat16_products_lowered(step.lowered)
    assert products >= 6 * 3 * step.config.num_layers
    assert checks.bfloat16_products(step.compiled) >= products


def test_its_gradients_are_summed_over_all_replicas(step):
    groups = checks.all_reduces(step.compiled)
    if step.slice.replicas == 1:
        assert groups == []
    else:
        everyone = ",".join(map(str, range(step.slice.replicas)))
        assert set(groups) == {f"{{{{{everyone}}}}}"}
