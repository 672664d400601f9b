"""Every exported layer keeps the promises of `tests/contract.py`."""

import keras
import pytest

from tests import contract
from tests.cases import CASES, exported
from tests.contract import PROMISES

# One case of each kind of loop and each custom gradient. Tests of functions compile
# bidirectional windows, Longformer's and BigBird's attention with masks; blocks and
# models consist of layers that are compiled here.
COMPILED = {
    "attention",
    "relu_causal",
    "exact_window_causal",
    "taylor",
    "exact",
    "local_causal",
    "forget_gate",
    "forget_gate_window",
    "linformer_of_two_inputs",
    "synthesizer",
    "sinkhorn_causal",
    "reformer_causal",
    "reversible",
    "lm_conv",
}
# One case of each class of the core, and of each kind of mechanism in the zoo.
EXPORTED = {
    "attention",
    "exact_window_causal",
    "exact",
    "local",
    "linear_transformer_causal",
    "block_conv_causal",
    "encoder",
    "decoder_of_two_inputs",
    "lm_rotary",
    "reformer_causal",
    "sinkhorn_causal",
    "reversible",
    "spatial_gating_causal",
}
CHOSEN = {
    contract.xla_agrees: COMPILED,
    contract.saved_model_gives_the_same_numbers: EXPORTED,
    # an export has unknown lengths, too
    contract.graph_of_unknown_lengths_agrees: CASES.keys() - EXPORTED,
}
# compiling and exporting take long
SLOW = {contract.xla_agrees, contract.saved_model_gives_the_same_numbers}


def pairs():
    for name in CASES:
        for promise in PROMISES:
            if name in CHOSEN.get(promise, CASES):
                # models of several layers take long in most promises
                slow = promise in SLOW or name.startswith("lm")
                yield pytest.param(
                    name,
                    promise,
                    id=f"{name}-{promise.__name__}",
                    marks=[pytest.mark.slow] * slow,
                )


@pytest.mark.parametrize(("name", "promise"), list(pairs()))
def test_layer_keeps_its_promises(name, promise):
    promise(CASES[name])


def test_every_exported_layer_has_a_case():
    with_cases = {case.layer_class for case in CASES.values()}
    assert exported(keras.layers.Layer) == with_cases
    assert COMPILED | EXPORTED <= CASES.keys()
