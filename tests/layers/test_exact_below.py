"""`exact_below`: Keras' exact attention for short inputs, features for the others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers.performer import by_length
from tests.contract import assert_equal_bits, assert_equal_weights, relative_error
from tests.costs import functions_for_tapes
from tests.layers.inputs import (
    assert_hidden_rows_give_the_bias,
    normal,
    small_layer,
    twin,
    value_and_gradients,
)

LENGTH = 7
X = normal((2, LENGTH, 5))
MASK = np.array([[0, 1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 1, 0, 1]], bool)


def exact_twin(layer, query_shape, value_shape):
    """Keras' exact layer with the dense layers of `layer`, which has `value_dim` 6."""
    if layer.num_key_value_heads == layer.num_heads:
        exact = keras.layers.MultiHeadAttention(3, 4, value_dim=6, dtype=layer.dtype)
    else:
        exact = keras.layers.GroupQueryAttention(4, 6, 2, dtype=layer.dtype)
    exact.build(query_shape, value_shape)
    layer.build(query_shape, value_shape)
    exact.set_weights(layer.get_weights()[:8])
    return exact


def assert_same_gradients(found, wanted):
    scale = max(np.abs(gradient).max() for gradient in wanted)
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < 1e-5 * scale


def assert_is_exact(layer, inputs, tolerance, keras_call, **call):
    """Output, scores, and the gradients of input and weights."""
    exact = exact_twin(layer, inputs.shape, inputs.shape)

    def self_attention(x, **more):
        return exact(x, x, **keras_call, **more)

    self_attention.trainable_weights = exact.trainable_weights
    expected, expected_gradients = value_and_gradients(self_attention, inputs)
    output, gradients = value_and_gradients(layer, inputs, **call)
    assert relative_error(output, expected) < tolerance
    assert len(gradients) == len(expected_gradients) == 9
    for index, (gradient, wanted) in enumerate(zip(gradients, expected_gradients)):
        if index == 4:  # the bias of keys, which moves all scores of a row alike
            assert np.abs(gradient).max() < 20 * tolerance
        else:
            assert relative_error(gradient, wanted) < 10 * tolerance
    _, expected = self_attention(inputs, return_attention_scores=True)
    _, scores = layer(inputs, return_attention_scores=True, **call)
    assert relative_error(scores, expected) < tolerance


@pytest.mark.parametrize(
    "kind, heads",
    [("causal", "multi-head"), ("masked", "multi-head"), ("causal call", "grouped")],
)
def test_short_inputs_take_the_exact_attention_of_keras(kind, heads):
    options = dict(exact_below=LENGTH + 1, causal=kind == "causal")
    if heads == "grouped":
        options |= dict(num_heads=6, num_key_value_heads=2)
    else:
        options |= dict(value_dim=6)
    call, keras_call = {}, dict(use_causal_mask=options["causal"])
    if kind == "causal call":
        call = keras_call = dict(use_causal_mask=True)
    elif kind == "masked":
        call = dict(key_mask=MASK)
        keras_call = dict(attention_mask=np.repeat(MASK[:, None], LENGTH, axis=1))
    assert_is_exact(small_layer(**options), X, 1e-6, keras_call, **call)
    # and features are something else
    layer = small_layer(**options)
    without = twin(layer_built(layer), X, **{**options, "exact_below": None})
    assert relative_error(without(X, **call), layer(X, **call)) > 0.02


def test_float64_is_exact_in_float64():
    keras.config.set_dtype_policy("float64")
    layer = small_layer(exact_below=8, value_dim=6, causal=True)
    x = normal(X.shape, dtype="float64")
    assert_is_exact(layer, x, 1e-14, dict(use_causal_mask=True))


@pytest.mark.parametrize(
    "policy, tolerance", [("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)]
)
def test_half_precision_has_a_softmax_in_float32(policy, tolerance):
    layer = layer_built(small_layer(exact_below=8))
    half = twin(layer, X, exact_below=8, dtype=policy)
    # scores beyond the largest float16 and hardly told apart in bfloat16
    for one in (layer, half):
        for dense in (one.query_dense, one.key_dense):
            dense.kernel.assign(np.round(16 * dense.kernel) * 16)
            dense.bias.assign(tf.fill(dense.bias.shape, 64.0))
    x = np.round(4 * X) / 4
    output, scores = half(x, return_attention_scores=True)
    expected, expected_scores = layer(x, return_attention_scores=True)
    assert output.dtype == scores.dtype == half.compute_dtype
    assert relative_error(output, expected) < tolerance
    assert relative_error(scores, expected_scores) < tolerance


def test_cross_attention_counts_the_keys():
    layer = small_layer(exact_below=6, value_dim=6)
    value = normal((2, 5, 5), seed=1)
    exact = exact_twin(layer, X.shape, value.shape)
    assert relative_error(layer(X, value), exact(X, value)) < 1e-6
    without = twin(layer, X, value_dim=6)
    assert_equal_bits(layer(value, X), without(value, X))


@pytest.mark.parametrize("masked, causal", [(False, False), (True, True)])
def test_from_that_length_on_it_is_the_layer_without(causal, masked):
    layer = layer_built(small_layer(exact_below=LENGTH, causal=causal))
    without = twin(layer, X, causal=causal)
    exact = twin(layer, X, causal=causal, exact_below=1000)
    call = dict(key_mask=MASK) if masked else {}
    got = value_and_gradients(layer, X, **call)
    expected = value_and_gradients(without, X, **call)
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(expected)):
        assert_equal_bits(one, other)
    call["return_attention_scores"] = True
    for one, other in zip(layer(X, **call), without(X, **call)):
        assert_equal_bits(one, other)
    # one token fewer
    x, call = X[:, 1:], dict(key_mask=MASK[:, 1:]) if masked else {}
    assert_equal_bits(layer(x, **call), exact(x, **call))
    assert relative_error(layer(x, **call), without(x, **call)) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile, causal", [(False, True), (True, False)])
def test_an_unknown_length_is_decided_when_the_graph_runs(jit_compile, causal):
    """Outputs, scores and gradients; in XLA too, whose shapes Keras relaxes."""
    layer = layer_built(small_layer(exact_below=LENGTH, causal=causal, chunk_size=3))
    specs = [tf.TensorSpec((None, None, 5)), tf.TensorSpec((None, None), tf.bool)]

    @tf.function(input_signature=specs, jit_compile=jit_compile)
    def graph(x, mask):
        _, scores = layer(x, key_mask=mask, return_attention_scores=True)
        return value_and_gradients(layer, x, key_mask=mask), scores

    for length in (LENGTH - 1, LENGTH):
        x = tf.constant(normal((2, length, 5)))
        mask = MASK[:, :length]
        (output, gradients), scores = graph(x, mask)
        _, expected_scores = layer(x, key_mask=mask, return_attention_scores=True)
        assert relative_error(scores, expected_scores) < 1e-6
        expected, wanted = value_and_gradients(layer, x, key_mask=mask)
        assert relative_error(output, expected) < 2e-6
        assert_same_gradients(gradients, wanted)


@pytest.mark.slow
def test_a_window_of_unknown_length_has_its_gradients():
    """Some of them a kernel leaves to tapes of its own."""
    options = dict(exact_below=LENGTH, exact_window=2, causal=True)
    layer = layer_built(small_layer(**options))
    graph = tf.function(
        lambda x: value_and_gradients(layer, x),
        input_signature=[tf.TensorSpec((2, None, 5))],
    )
    _, wanted = value_and_gradients(layer, X)
    assert_same_gradients(graph(X)[1], wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_equals_dropping_tokens(causal):
    layer = small_layer(exact_below=LENGTH + 1, causal=causal)
    x = X[:1].copy()
    x[0, ~MASK[0]] *= 30  # padding need not be small
    call = dict(query_mask=MASK[:1])
    output, gradients = value_and_gradients(layer, x, output_mask=MASK[:1], **call)
    expected, wanted = value_and_gradients(layer, x[:, MASK[0]])
    assert relative_error(output.numpy()[:, MASK[0]], expected) < 1e-6
    assert relative_error(gradients[0].numpy()[:, MASK[0]], wanted[0]) < 1e-5
    assert not gradients[0].numpy()[:, ~MASK[0]].any()
    _, scores = layer(x, return_attention_scores=True, **call)
    assert not scores.numpy()[:, :, ~MASK[0]].any()
    assert not scores.numpy()[:, :, :, ~MASK[0]].any()


@pytest.mark.parametrize("known, causal", [(False, False), (True, True)])
def test_no_visible_key_gives_the_bias_and_finite_gradients(causal, known):
    layer = layer_built(small_layer(exact_below=LENGTH + 1, causal=causal))
    mask = np.stack([MASK[0], np.zeros(LENGTH, bool)])
    shape = X.shape if known else (None, None, 5)

    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def graph(x):
        return value_and_gradients(layer, x, key_mask=mask)

    output, gradients = graph(3 * X)
    scores = assert_hidden_rows_give_the_bias(layer, X, mask, output, gradients)
    sums = MASK[0].cumsum() > 0 if causal else np.ones(LENGTH)
    np.testing.assert_allclose(np.sum(scores[0], -1), np.tile(sums, (3, 1)), 1e-6)


def test_the_length_is_that_of_all_attended_axes():
    x = normal((2, 3, 4, 5))
    for axes, length in (((1, 2), 12), ((1,), 3), ((2,), 4)):
        options = dict(attention_axes=axes)
        short = layer_built(small_layer(exact_below=length + 1, **options), x)
        long = twin(short, x, exact_below=length, **options)
        assert_equal_bits(long(x), twin(short, x, **options)(x))
        exact = keras.layers.MultiHeadAttention(3, 4, **options)
        exact.build(x.shape, x.shape)
        exact.set_weights(short.get_weights()[:8])
        assert relative_error(short(x), exact(x, x)) < 1e-6
        assert relative_error(short(x), long(x)) > 0.02


def test_dropout_falls_on_the_attended_values():
    layer = small_layer(exact_below=8, dropout=0.4, seed=8)
    clean = layer(X).numpy()
    dropped = np.stack([layer(X, training=True).numpy() for _ in range(200)])
    standard_error = dropped.std(axis=0, ddof=1) / np.sqrt(len(dropped))
    assert np.abs((dropped.mean(axis=0) - clean) / standard_error).max() < 4.5


@pytest.mark.parametrize("feature_map", ["relu", "exp"])
def test_a_generalized_kernel_raises(feature_map):
    with pytest.raises(ValueError, match="GeneralizedFeatures are a different model"):
        PerformerAttention(2, 4, feature_map=feature_map, exact_below=9)
    PerformerAttention(2, 4, feature_map=feature_map, exact_below=None)
    PerformerAttention(2, 4, feature_map="favor+", exact_below=9)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
def test_a_length_that_is_no_positive_int_raises(value):
    with pytest.raises(ValueError, match="exact_below must be a positive int or None"):
        PerformerAttention(2, 4, exact_below=value)


@pytest.mark.parametrize("length", [1, LENGTH])
def test_a_state_raises_at_any_length(length):
    layer = small_layer(causal=True, exact_below=3)
    x, state = X[:, :length], small_layer(causal=True).initial_state(2)
    for call in (dict(state=state), dict(return_state=True)):
        with pytest.raises(ValueError, match="exact_below=None. Received: .*=3"):
            layer(x, **call)
    with pytest.raises(ValueError, match="exact_below=None. Received: .*=3"):
        layer.initial_state(2)


def test_a_saved_model_still_knows_its_length():
    model = keras.Sequential(
        [keras.Input((None, 5)), small_layer(exact_below=LENGTH, causal=True)]
    )
    model.save("model.keras")
    restored = keras.saving.load_model("model.keras")
    assert restored.layers[0].exact_below == LENGTH
    assert_equal_weights(restored, model)
    without = layer_built(small_layer(causal=True))
    without.set_weights(model.get_weights())
    for length in (LENGTH - 1, LENGTH):
        x = X[:, :length]
        assert_equal_bits(restored(x), model(x))
        assert relative_error(restored.predict(x, verbose=0), model(x)) < 1e-6
        assert (relative_error(model(x), without(x)) > 0.02) == (length < LENGTH)


def test_it_trains_on_batches_of_many_lengths():
    """Keras relaxes the shapes of its step: both sides are in one graph."""
    model = keras.Sequential([keras.Input((None, 5)), small_layer(exact_below=LENGTH)])
    eager = keras.models.clone_model(model)
    eager.set_weights(model.get_weights())
    model.compile("sgd", "mse", jit_compile=False)
    eager.compile("sgd", "mse", run_eagerly=True)
    for length in (LENGTH - 1, LENGTH, LENGTH - 2):
        x = normal((2, length, 5), seed=length)
        losses = [m.train_on_batch(x, np.ones_like(x)) for m in (model, eager)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(model.get_weights(), eager.get_weights()):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("persistent", [False, True])
def test_several_tapes_differentiate_a_choice_that_a_graph_makes(persistent):
    """TensorFlow fails where a branch's gradient holds tensors of outside."""

    def power(exponent):
        def branch(inputs, constants):
            (query, _), (factor, _) = inputs, constants

            @tf.custom_gradient
            def function(x):
                def gradient(d):
                    return d * factor * exponent * x ** (exponent - 1.0)

                return factor * x**exponent, gradient

            return function(query)

        return branch

    def run(x):
        with tf.GradientTape(persistent) as outer:
            outer.watch(x)
            factor = 6.0 + 0.0 * x[0, 0]
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = by_length(3, power(2.0), power(3.0), [x, x], (factor, None))
            first = tape.gradient(y, x)
        return first, outer.gradient(first, x)

    shape = tf.TensorSpec((1, None, 1, 1))
    compiled = tf.function(run, input_signature=[shape], autograph=False)
    made = functions_for_tapes(compiled.get_concrete_function())
    assert len(made) == (2 if persistent else 0)  # of the backward pass
    for length, exponent in ((2, 2.0), (3, 3.0)):
        x = tf.reshape(tf.range(1.0, length + 1), (1, length, 1, 1))
        first, second = compiled(x)
        np.testing.assert_allclose(first, 6 * exponent * x ** (exponent - 1), rtol=1e-6)
        expected = 6 * exponent * (exponent - 1) * x ** (exponent - 2)
        np.testing.assert_allclose(second, expected, rtol=1e-6)


def layer_built(layer, x=X):
    layer.build(x.shape)
    return layer
