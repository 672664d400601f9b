"""Promises of every exported layer, as functions of a `tests.cases.Case`."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.layers.inputs import output_and_gradients
from tests.layers.twins import randomize

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16", "float64")


def named_arguments(layer_class):
    """Returns the names of a layer's arguments, without those of Keras' base class."""
    shown = [inspect.signature(layer_class)]
    # also arguments that a class passes on as **kwargs
    for base in layer_class.__mro__:
        if base.__module__.startswith("keras.src"):
            break
        if "__init__" in vars(base):
            shown.append(inspect.signature(base.__init__))
    named = {p for signature in shown for p in signature.parameters.values()}
    return {p.name for p in named if not str(p).startswith("*")} - {"self"}


def config_is_the_signature_and_round_trips(case):
    named = named_arguments(case.layer_class)
    config = case.make(name="a_name", dtype="mixed_bfloat16").get_config()
    # layers take the entries of Keras' `get_config` by **kwargs
    base = {"name", "trainable", "dtype"}
    if "attention" in case.arguments:  # the attention has its own options
        named &= set(config)
    assert set(config) - base == named - base
    assert config["name"] == "a_name"
    assert config["dtype"]["config"] == {"name": "mixed_bfloat16"}
    for name, value in case.arguments.items():
        stored = json.loads(json.dumps(config[name]))
        if isinstance(value, (int, float)):
            assert stored == value or stored == [value], name

    layer, inputs = case.make(), tensors(case.inputs())
    text = json.dumps(layer.get_config())
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    for again in (
        case.layer_class.from_config(json.loads(text)),
        keras.saving.deserialize_keras_object(serialized),
    ):
        assert type(again) is case.layer_class
        assert json.dumps(again.get_config()) == text
    expected = layer(*inputs)
    again(*inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*inputs), expected)
    with pytest.raises((TypeError, ValueError), match="no_such_argument"):
        case.make(no_such_argument=1)


def keras_file_gives_equal_bits(case):
    """A loaded file gives equal bits, and symbolic shapes equal the real ones."""
    model, inputs = model_of(case), case.inputs()
    randomize(model)  # some weights begin as copies of others
    redraw(model)
    output = model(inputs)
    # from a layer that was never called
    shape = case.make().compute_output_shape(*(x.shape for x in inputs))
    assert tuple(shape) == tuple(output.shape)
    assert tuple(model.output.shape) == (None, None, *output.shape[2:])
    assert keras.backend.standardize_dtype(output.dtype) == model.output.dtype
    model.save("model.keras")
    restored = keras.saving.load_model("model.keras")
    assert [w.name for w in restored.weights] == [w.name for w in model.weights]
    for one, other in zip(restored.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(restored(inputs), output)


def every_dtype_policy_gives_the_same_numbers(case):
    """Outputs and gradients agree, and each trainable weight has a gradient."""
    weights = layer_of(case).get_weights()
    found = {policy: gradients_of(policy, case, weights) for policy in POLICIES}
    expected, wanted = found.pop("float64")
    tolerances = (1e-6, case.half_precision, case.half_precision / 8)
    for (output, _), tolerance in zip(found.values(), tolerances):
        assert_close(output, expected, tolerance)
    of_weights = wanted[len(case.widths) :]
    assert all(np.abs(gradient).max() > 1e-7 for gradient in of_weights)
    assert_close_gradients(found["float32"][1], wanted, 1e-5)
    half = case.half_gradients or 2 * case.half_precision
    assert_close_gradients(found["mixed_bfloat16"][1], wanted, half)
    # check that the policies took effect
    assert relative_error(found["float32"][0], expected) > 0
    assert relative_error(found["mixed_bfloat16"][0], expected) > 1e-4


def gradients_of(policy, case, weights):
    layer = layer_of(case, dtype=policy)
    layer.set_weights(weights)
    output, gradients = output_and_gradients(layer, tensors(case.inputs()))
    symbolic = layer.compute_dtype if case.widths else "float32"
    if policy == "float64":
        symbolic = "float64"
    assert keras.backend.standardize_dtype(output.dtype) == symbolic
    return output, gradients


def graph_of_unknown_lengths_agrees(case):
    layer, inputs = case.make(), tensors(case.inputs())
    assert np.std(layer(*inputs)) > 1e-3
    shapes = [tf.TensorSpec((None, None, *x.shape[2:]), x.dtype) for x in inputs]
    graph = tf.function(layer.__call__, input_signature=shapes)
    for given in inputs, tensors(case.inputs(batch=3, length=7)):
        assert_close(graph(*given), layer(*given), 1e-6)


def xla_agrees(case):
    """XLA gives the same outputs and gradients."""
    layer, inputs = layer_of(case), tensors(case.inputs())
    output, gradients = output_and_gradients(layer, inputs)
    compiled = tf.function(output_and_gradients, jit_compile=True)
    found, of_xla = compiled(layer, inputs)
    assert_close(found, output, 1e-5)
    assert_close_gradients(of_xla, gradients, 1e-5)


def saved_model_gives_the_same_numbers(case):
    model = model_of(case)
    redraw(model)
    model.export("exported", verbose=False)
    exported = keras.layers.TFSMLayer("exported", call_endpoint="serve")
    for batch, length in ((2, 5), (3, 8)):
        inputs = [
            tf.cast(x, t.dtype)
            for x, t in zip(case.inputs(batch, length), model.inputs)
        ]
        assert_close(exported(inputs), model(inputs), 1e-6)


PROMISES = (
    config_is_the_signature_and_round_trips,
    keras_file_gives_equal_bits,
    every_dtype_policy_gives_the_same_numbers,
    graph_of_unknown_lengths_agrees,
    xla_agrees,
    saved_model_gives_the_same_numbers,
)


def layer_of(case, **overrides):
    """Returns the layer, after a call that builds it."""
    layer = case.make(**overrides)
    layer(*tensors(case.inputs()))
    return layer


def assert_close_gradients(actual, expected, tolerance):
    """Compares gradients relative to max(own norm, norm of all gradients / 100)."""
    actual, expected = (
        [np.asarray(tf.cast(gradient, "float64")) for gradient in gradients]
        for gradients in (actual, expected)
    )
    norms = [np.linalg.norm(gradient) for gradient in expected]
    floor = np.linalg.norm(norms) / 100
    for one, other, norm in zip(actual, expected, norms, strict=True):
        assert np.linalg.norm(one - other) < tolerance * max(norm, floor), one.shape


def model_of(case, **overrides):
    """Returns the layer in a functional model of unknown batch size and length."""
    inputs = case.symbolic_inputs()
    return keras.Model(inputs, case.make(**overrides)(*inputs))


def tensors(inputs):
    return [tf.constant(x) for x in inputs]


def redraw(model):
    for layer in model._flatten_layers():
        drawn = getattr(layer, "projection_matrix", None) is not None
        if drawn and not layer.feature_map.trainable:
            layer.redraw_features()


def relative_error(actual, expected):
    """Returns |actual - expected| / |expected|, with Frobenius norms in float64."""
    actual, expected = (np.asarray(tf.cast(x, "float64")) for x in (actual, expected))
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def assert_close(actual, expected, tolerance):
    assert relative_error(actual, expected) < tolerance
