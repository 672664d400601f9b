"""Inputs without examples or without tokens: outputs and gradients are empty too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import CASES


# One of each attention; all others are made of these.
@pytest.mark.parametrize(
    "name, batch, length",
    [
        ("attention", 0, 5),
        ("attention", 2, 0),
        ("exact", 2, 0),
        ("linformer_of_two_inputs", 2, 0),
        ("longformer_causal", 2, 0),
    ],
)
def test_empty_inputs_give_empty_outputs_and_no_gradients(name, batch, length):
    case = CASES[name]
    layer = case.make()
    layer(*case.inputs())
    inputs = [tf.zeros((batch, length, width)) for width in case.widths]
    shapes = [tf.TensorSpec((None, None, width)) for width in case.widths]

    def differentiated(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = layer(*inputs)
        return output, *tape.gradient(output, [*inputs, *layer.trainable_variables])

    for function in (
        differentiated,
        tf.function(differentiated, input_signature=shapes),
    ):
        output, *gradients = function(*inputs)
        assert output.shape == layer.compute_output_shape(inputs[0].shape)
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, keras.ops.zeros_like(gradient))
