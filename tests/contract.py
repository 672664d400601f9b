"""What every exported layer promises; `check_layer` holds a layer to it."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16", "float64")


def check_layer(case, promises=None):
    """Raises an `AssertionError` if a layer breaks one of the promises.

    Args:
        case: a `tests.cases.Case`.
        promises: functions of a case. Defaults to all of `PROMISES`.
    """
    for promise in PROMISES if promises is None else promises:
        promise(case)


def named_arguments(layer_class):
    """Names of all arguments that a layer takes besides those of Keras' own base."""
    shown = [inspect.signature(layer_class)]
    # also what a class passes on as **kwargs
    for base in layer_class.__mro__:
        if base.__module__.startswith("keras.src"):
            break
        if "__init__" in vars(base):
            shown.append(inspect.signature(base.__init__))
    named = {p for signature in shown for p in signature.parameters.values()}
    return {p.name for p in named if not str(p).startswith("*")} - {"self"}


def config_is_the_signature(case):
    named = named_arguments(case.layer_class)
    config = case.make(name="a_name", dtype="mixed_bfloat16").get_config()
    # what Keras' own `get_config` adds is taken by **kwargs
    base = {"name", "trainable", "dtype"}
    if "attention" in case.arguments:  # which has options of its own
        named &= set(config)
    assert set(config) - base == named - base
    assert config["name"] == "a_name"
    assert config["dtype"]["config"] == {"name": "mixed_bfloat16"}
    for name, value in case.arguments.items():
        stored = json.loads(json.dumps(config[name]))
        if isinstance(value, (int, float)):
            assert stored == value or stored == [value], name


def config_round_trips(case):
    layer = case.make()
    config = layer.get_config()
    text = json.dumps(config)
    again = case.layer_class.from_config(json.loads(text))
    assert json.dumps(again.get_config()) == text
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    restored = keras.saving.deserialize_keras_object(serialized)
    assert type(restored) is case.layer_class
    assert json.dumps(restored.get_config()) == text

    model, inputs = model_of(case), case.inputs()
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    assert_equal_bits(cloned(inputs), model(inputs))


def unknown_argument_raises(case):
    with pytest.raises((TypeError, ValueError), match="no_such_argument"):
        case.make(no_such_argument=1)


def symbolic_shape_is_the_real_shape(case):
    inputs = case.inputs()
    layer = case.make()
    shape = layer.compute_output_shape(*(x.shape for x in inputs))  # not called yet
    symbolic = case.make()(
        *(keras.KerasTensor(x.shape, case.input_dtype() or x.dtype) for x in inputs)
    )
    real = layer(*tensors(inputs))
    assert tuple(shape) == tuple(symbolic.shape) == tuple(real.shape)
    assert keras.backend.standardize_dtype(real.dtype) == symbolic.dtype
    unknown = case.make()(
        *(keras.Input(shape, dtype=case.input_dtype()) for shape in case.input_shapes())
    )
    assert tuple(unknown.shape) == (None, None, *real.shape[2:])


def eager_graph_and_xla_agree(case):
    layer, inputs = case.make(), tensors(case.inputs())
    eager = layer(*inputs)
    shapes = [tf.TensorSpec((None, None, *x.shape[2:]), x.dtype) for x in inputs]
    graph = tf.function(layer.__call__, input_signature=shapes)
    xla = tf.function(layer.__call__, jit_compile=True)
    assert np.std(eager) > 1e-3
    assert_close(graph(*inputs), eager, 1e-6)
    assert_close(xla(*inputs), eager, 1e-5)
    longer = tensors(case.inputs(batch=3, length=7))
    assert_close(graph(*longer), layer(*longer), 1e-6)


def keras_file_gives_equal_bits(case):
    model, inputs = model_of(case), case.inputs()
    redraw(model)
    model.save("model.keras")
    restored = keras.saving.load_model("model.keras")
    assert_equal_weights(restored, model)
    assert_equal_bits(restored(inputs), model(inputs))

    model.save_weights("model.weights.h5")
    has_seed = "seed" in named_arguments(case.layer_class)
    other = model_of(case, **({"seed": 2} if has_seed else {}))
    other.load_weights("model.weights.h5")
    assert_equal_weights(other, model)
    assert_equal_bits(other(inputs), model(inputs))


def saved_model_gives_the_same_numbers(case):
    """Of `export`; `tests/test_saving.py` has `tf.saved_model.save` too."""
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


def every_dtype_policy_gives_the_same_numbers(case):
    weights = model_of(case).get_weights()
    inputs = case.inputs()
    outputs = {}
    for policy in POLICIES:
        model = model_of(case, dtype=policy)
        model.set_weights(weights)
        output = model(inputs)
        assert keras.backend.standardize_dtype(output.dtype) == model.output.dtype
        outputs[policy] = np.asarray(tf.cast(output, "float64"))
    expected = outputs.pop("float64")
    tolerances = (1e-6, case.half_precision, case.half_precision / 8)
    for output, tolerance in zip(outputs.values(), tolerances):
        assert_close(output, expected, tolerance)
    # that the policies took effect at all
    assert relative_error(outputs["float32"], expected) > 0
    assert relative_error(outputs["mixed_bfloat16"], expected) > 1e-4


def one_step_moves_what_trains_and_nothing_else(case, run_eagerly=True):
    model, inputs = model_of(case), case.inputs()
    output = model(inputs)
    if not model.weights:
        return  # nothing is there to move, and Keras warns of it
    before = [np.asarray(w) for w in model.weights]
    options = dict(run_eagerly=run_eagerly, jit_compile=False)
    model.compile(keras.optimizers.SGD(1.0), "mse", **options)
    targets = np.random.default_rng(3).standard_normal(output.shape)
    loss = model.train_on_batch(inputs, targets)
    assert np.isfinite(loss)
    trains = {id(w) for w in model.trainable_weights}
    for weight, old in zip(model.weights, before):
        change = np.abs(np.asarray(weight) - old).max()
        assert (change > 1e-7) == (id(weight) in trains), (weight.path, change)


def one_step_of_a_graph_moves_the_same(case):
    one_step_moves_what_trains_and_nothing_else(case, run_eagerly=False)


def gradients_agree(case):
    """Of inputs and weights: those of XLA, and in half precision, with float64."""
    model, inputs = model_of(case), tensors(case.inputs())
    weights = model.get_weights()
    expected = gradients_of("float64", case, weights, inputs)
    compiled = tf.function(gradients, jit_compile=True)(model, inputs)
    assert_close_gradients(compiled, expected, 1e-5)
    half = gradients_of("mixed_bfloat16", case, weights, inputs)
    assert_close_gradients(half, expected, 2 * case.half_precision)


def gradients_of(policy, case, weights, inputs):
    model = model_of(case, dtype=policy)
    model.set_weights(weights)
    return gradients(model, inputs)


def gradients(model, inputs):
    """Of inputs and trained weights, for one random cotangent of the output."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = tf.cast(model(inputs), "float64")
        cotangent = np.random.default_rng(4).standard_normal(output.shape)
        total = tf.reduce_sum(output * cotangent)
    trained = [weight.value for weight in model.trainable_weights]
    return tape.gradient(total, [*inputs, *trained])


def assert_close_gradients(actual, expected, tolerance):
    """Each, by its own norm, or a hundredth of that of all where it is smaller."""
    actual, expected = (
        [np.asarray(tf.cast(gradient, "float64")) for gradient in gradients]
        for gradients in (actual, expected)
    )
    norms = [np.linalg.norm(gradient) for gradient in expected]
    floor = np.linalg.norm(norms) / 100
    for one, other, norm in zip(actual, expected, norms, strict=True):
        assert np.linalg.norm(one - other) < tolerance * max(norm, floor), one.shape


PROMISES = (
    config_is_the_signature,
    config_round_trips,
    unknown_argument_raises,
    symbolic_shape_is_the_real_shape,
    eager_graph_and_xla_agree,
    keras_file_gives_equal_bits,
    saved_model_gives_the_same_numbers,
    every_dtype_policy_gives_the_same_numbers,
    one_step_moves_what_trains_and_nothing_else,
    one_step_of_a_graph_moves_the_same,
    gradients_agree,
)


def model_of(case, **overrides):
    """The layer in a functional model of unknown batch and length."""
    dtype = case.input_dtype()
    inputs = [keras.Input(shape, dtype=dtype) for shape in case.input_shapes()]
    return keras.Model(inputs, case.make(**overrides)(*inputs))


def tensors(inputs):
    return [tf.constant(x) for x in inputs]


def redraw(model):
    for layer in model._flatten_layers():
        drawn = getattr(layer, "projection_matrix", None) is not None
        if drawn and not layer.feature_map.trainable:
            layer.redraw_features()


def relative_error(actual, expected):
    """Frobenius norm of the difference over that of what is expected, in float64."""
    actual, expected = (np.asarray(tf.cast(x, "float64")) for x in (actual, expected))
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def assert_close(actual, expected, tolerance):
    assert relative_error(actual, expected) < tolerance


def assert_equal_bits(actual, expected):
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def assert_equal_weights(actual, expected):
    assert [w.name for w in actual.weights] == [w.name for w in expected.weights]
    for one, other in zip(actual.get_weights(), expected.get_weights()):
        np.testing.assert_array_equal(one, other)
