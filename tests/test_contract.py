"""Every exported layer keeps the promises of `tests/contract.py`."""

import inspect

import keras
import pytest

import keras_performer
from tests import contract
from tests.cases import CASES
from tests.contract import PROMISES, check_layer

# Compiled in the tests of their own files, with masks, or in those of their functions.
COMPILED_ELSEWHERE = {
    "local",
    "local_causal",
    "longformer",
    "longformer_causal",
    "big_bird",
    "big_bird_causal",
    "sinkhorn",
    "sinkhorn_causal",
    "fourier_mixing",
    "token_mixing",
    "spatial_gating",
    "spatial_gating_causal",
}
# Each has the loops and branches of another case of the class, which is compiled.
COMPILED_AS_ANOTHER = {
    "grouped_heads",
    "no_projection",
    "qk_norm",
    "linformer",
    "reformer",
    "synthesizer_of_two_inputs",
    "synthesizer_factorized_random",
    "block_without_attention",
    "block_mixing",
    "lm",
    "lm_exact",
    "lm_mixing",
    "lm_recompute",
}
# One of each class, and of `PerformerAttention` one of each kind of loop.
EXPORTED = {
    "attention",
    "favor_plus_causal",
    "relu_causal",
    "exact_window",
    "exact_window_causal",
    "taylor",
    "exact",
    "local",
    "linear_transformer_causal",
    "linformer_of_two_inputs",
    "synthesizer",
    "longformer",
    "big_bird",
    "sinkhorn_causal",
    "fourier_mixing",
    "token_mixing",
    "spatial_gating_causal",
    "reformer_causal",
    "reversible",
    "block_conv_causal",
    "encoder",
    "decoder_of_two_inputs",
    "lm_rotary",
}
# What others train is in the graphs of their own tests, or has no loop and no gradient
# that we wrote.
TRAINED_IN_A_GRAPH = {
    "attention",
    "favor_plus_causal",
    "exact_window_causal",
    "linformer_of_two_inputs",
    "synthesizer",
    "block_conv_causal",
    "decoder_of_two_inputs",
    "lm_rotary",
}
# One of each class and kind of weights; what the others add has tests of gradients in
# its own file.
DIFFERENTIATED = {
    "attention",
    "taylor",
    "exact",
    "local_causal",
    "linear_transformer_causal",
    "longformer",
    "big_bird",
    "linformer_of_two_inputs",
    "synthesizer",
    "synthesizer_factorized_random",
    "sinkhorn",
    "sinkhorn_causal",
    "reformer_causal",
    "reversible",
    "fourier_mixing",
    "token_mixing",
    "spatial_gating",
    "spatial_gating_causal",
}
# Promises that trace: some cases keep them for all.
COMPILED = CASES.keys() - COMPILED_ELSEWHERE - COMPILED_AS_ANOTHER
TRACED = {
    contract.eager_graph_and_xla_agree: COMPILED,
    contract.saved_model_gives_the_same_numbers: EXPORTED,
    contract.one_step_of_a_graph_moves_the_same: TRAINED_IN_A_GRAPH,
    contract.gradients_agree: DIFFERENTIATED,
}
# tracing a model takes long, for a SavedModel and for XLA
SLOW = {
    contract.saved_model_gives_the_same_numbers,
    contract.eager_graph_and_xla_agree,
    contract.gradients_agree,
}


def pairs():
    for name in CASES:
        for promise in PROMISES:
            if name in TRACED.get(promise, CASES):
                # models of several layers take long for most promises
                slow = promise in SLOW or name.startswith("lm")
                yield pytest.param(
                    name,
                    promise,
                    id=f"{name}-{promise.__name__}",
                    marks=[pytest.mark.slow] * slow,
                )


@pytest.mark.parametrize(("name", "promise"), list(pairs()))
def test_layer_keeps_its_promises(name, promise):
    check_layer(CASES[name], [promise])


def test_chosen_cases_exist_and_each_class_is_exported():
    chosen = COMPILED_ELSEWHERE | COMPILED_AS_ANOTHER | EXPORTED | TRAINED_IN_A_GRAPH
    assert chosen <= CASES.keys()
    exported = {CASES[name].layer_class for name in EXPORTED}
    assert exported == {case.layer_class for case in CASES.values()}
    compiled = {CASES[name].layer_class for name in COMPILED}
    assert {CASES[name].layer_class for name in COMPILED_AS_ANOTHER} <= compiled


def test_every_exported_layer_has_a_case():
    exported = [getattr(keras_performer, name) for name in keras_performer.__all__]
    layers = keras_performer.layers
    for part in layers, keras_performer.zoo:
        exported += [getattr(part, name) for name in part.__all__]
    classes = {
        x for x in exported if inspect.isclass(x) and issubclass(x, keras.layers.Layer)
    }
    bases = {layers.AttentionLayer, layers.EmbeddingLayer, layers.MixingLayer}
    assert classes - bases == {case.layer_class for case in CASES.values()}


def test_registered_names_do_not_change():
    # files on users' disks hold these names
    names = {
        keras.saving.get_registered_name(x)
        for x in (
            keras_performer.PerformerAttention,
            keras_performer.PerformerLM,
            keras_performer.layers.ExactAttention,
            keras_performer.layers.PerformerBlock,
            keras_performer.RedrawFeatures,
            keras_performer.feature_maps.GeneralizedFeatures,
            keras_performer.feature_maps.SoftmaxFeatures,
        )
    }
    assert names == {
        "keras_performer>PerformerAttention",
        "keras_performer>PerformerLM",
        "keras_performer>ExactAttention",
        "keras_performer>PerformerBlock",
        "keras_performer>RedrawFeatures",
        "keras_performer>GeneralizedFeatures",
        "keras_performer>SoftmaxFeatures",
    }
