"""Layers and their graphs are freed when nothing refers to them."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from tests import contract
from tests.cases import CASES, LM


def fitted_lm(recompute, causal):
    model = keras_performer.PerformerLM(**LM, recompute=recompute, causal=causal)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fitted(model, np.random.default_rng(0).integers(601, size=(2, 9)), loss)


def fitted(model, x, loss):
    """Trains a model, and returns weak references to its layers."""
    model.compile("sgd", loss, jit_compile=False)
    model.fit(x, x, verbose=0)
    return [weakref.ref(layer) for layer in model._flatten_layers()]


def assert_gone(references):
    keras.utils.clear_session()
    gc.collect()
    assert [kept() for kept in references if kept() is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("recompute, causal", [("network", True), ("block", False)])
def test_a_fitted_model_with_recompute_goes(recompute, causal):
    assert_gone(fitted_lm(recompute, causal))


def test_a_fitted_reversible_block_goes():
    case = CASES["reversible"]
    assert_gone(fitted(contract.model_of(case), case.inputs()[0], "mse"))


# One layer for each custom gradient.
DIFFERENTIATED = {
    "bidirectional": CASES["attention"].make,
    "causal": CASES["relu_causal"].make,
    "exact window": CASES["exact_window"].make,
    "exact window, causal": CASES["exact_window_causal"].make,
    "dense layers": lambda: CASES["attention"].make(dtype="mixed_bfloat16"),
    "local": CASES["local"].make,
    "lsh": CASES["reformer"].make,
    "reversible": CASES["reversible"].make,
}


def gradient_in_a_graph(layer):
    """Checks that a graph has the eager gradient, also after garbage collection.

    Returns:
        Weak references to the layer and the graph.
    """
    x = tf.constant(CASES["attention"].inputs()[0])
    expected = gradient_of(layer, x)
    found = []

    @tf.function
    def function(x):
        found.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return layer(x)

    function(x)
    gc.collect()  # frees objects that only cycles refer to
    result = gradient_of(function, x)
    np.testing.assert_allclose(result, expected, atol=1e-2 * np.abs(expected).max())
    return [weakref.ref(layer), *found]


def gradient_of(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_a_graph_with_a_gradient_of_our_own_goes(name):
    assert_gone(gradient_in_a_graph(DIFFERENTIATED[name]()))


def test_a_tape_keeps_what_it_differentiates():
    x = tf.constant(CASES["reversible"].inputs()[0])
    keras.utils.set_random_seed(0)
    expected = gradient_of(CASES["reversible"].make(), x)
    keras.utils.set_random_seed(0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = CASES["reversible"].make()(x)
    gc.collect()  # the layer has no other owner
    np.testing.assert_array_equal(tape.gradient(y, x), expected)


def test_a_gradient_without_its_layer_says_so():
    x = tf.constant(CASES["reversible"].inputs()[0])

    def traced():
        layer = CASES["reversible"].make()
        layer(x)
        function = tf.function(layer.__call__).get_concrete_function(x)
        # returns the variables, as TensorFlow needs them, but not the layer
        return function, layer.variables

    function, variables = traced()
    gc.collect()
    with pytest.raises(ReferenceError, match="keep the layer.*ReversibleBlock"):
        gradient_of(function, x)
    assert variables
