"""What Keras holds its `GroupQueryAttention` to, held against our layers.

As in `test_keras_multi_head_attention.py`: the control runs on Keras' own layer, and
the numbers are compared. `num_key_value_heads` is the only difference for ours.
"""

import keras
import numpy as np
import pytest

from tests.contract import relative_error
from tests.layers.inputs import normal
from tests.layers.like_keras import copy_weights, grouped_query, pair, results

EVERY_KIND = pytest.mark.parametrize("kind", ["keras", "exact", "performer"])
OUR_KINDS = pytest.mark.parametrize("kind", ["exact", "performer"])
B, T, S = 2, 5, 7

CASES = {
    "two of six": ([(B, T, 8)] * 2, {}, {}),
    "one of six": ([(B, T, 8)] * 2, dict(num_key_value_heads=1), {}),
    "all of six": ([(B, T, 8)] * 2, dict(num_key_value_heads=6), {}),
    "cross": ([(B, T, 8), (B, S, 8)], {}, {}),
    "a key of its own": ([(B, T, 8), (B, S, 8), (B, S, 3)], {}, {}),
    "no bias": ([(B, T, 8), (B, S, 8)], dict(use_bias=False), {}),
    "causal": ([(B, T, 8)] * 2, {}, dict(use_causal_mask=True)),
    "dropout, not training": ([(B, T, 8)] * 2, dict(dropout=0.5), dict(training=False)),
}


@OUR_KINDS
@pytest.mark.parametrize("case", CASES)
def test_numbers_and_gradients_are_those_of_keras(kind, case):
    shapes, options, call = CASES[case]
    expected, layer = pair(grouped_query, kind, shapes, **options)
    inputs = [normal(shape, seed) for seed, shape in enumerate(shapes)]
    wanted, got = results(expected, inputs, **call), results(layer, inputs, **call)
    assert list(got) == list(wanted)
    for name, right in wanted.items():
        # the gradient of the bias of the keys is 0: all scores of a query have it
        error = np.linalg.norm(got[name] - right)
        assert error < 1e-5 * max(np.linalg.norm(right), 1), name
    for name in ("output", "plain output", "d input 0", "value/kernel"):
        assert np.linalg.norm(wanted[name]) > 0.5


@OUR_KINDS
def test_weights_have_the_names_shapes_and_order_of_keras(kind):
    for case in ("two of six", "no bias"):
        shapes, options, _ = CASES[case]
        expected, layer = pair(grouped_query, kind, shapes, **options)

        def described(layer):
            weights = layer.trainable_weights
            return [(w.path.split("/", 1)[1], w.shape, w.dtype) for w in weights]

        assert described(layer) == described(expected)
        assert len(layer.trainable_weights) == (4 if options else 8)


@OUR_KINDS
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float64", 1e-12), ("mixed_bfloat16", 0.02), ("float16", 2e-3)],
)
def test_numbers_of_every_dtype(kind, dtype, tolerance):
    shapes = [(B, T, 8)] * 2
    exact, _ = pair(grouped_query, kind, shapes, dtype="float64")
    expected, layer = pair(grouped_query, kind, shapes, dtype=dtype)
    x = normal(shapes[0])
    wanted = exact(x.astype("float64"), x.astype("float64"))
    for other in (expected, layer):
        copy_weights(other, exact)
        output = other(x, x)
        assert output.dtype == other.compute_dtype
        assert relative_error(output, wanted) < tolerance


@EVERY_KIND
@pytest.mark.parametrize("key", [None, (2, 3)])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1)])
def test_the_computed_shape_is_that_of_the_output(kind, key, heads):
    options = dict(num_query_heads=heads[0], num_key_value_heads=heads[1])
    layer = grouped_query(kind, head_dim=2, **options)
    shapes = [(7, *shape) for shape in ((4, 8), (2, 8), key) if shape is not None]
    computed = layer.compute_output_shape(*shapes)
    assert tuple(layer(*map(normal, shapes)).shape) == tuple(computed) == (7, 4, 8)


@EVERY_KIND
def test_a_value_and_a_key_that_do_not_fit_raise(kind):
    layer = grouped_query(kind)
    with pytest.raises(ValueError, match="value.*key.*last"):
        layer.compute_output_shape((2, 4, 8), (2, 2, 8), (2, 1, 7))


@EVERY_KIND
def test_heads_that_do_not_divide_raise(kind):
    with pytest.raises(ValueError, match="num_key_value_heads"):
        grouped_query(kind, num_query_heads=6, num_key_value_heads=4)


@EVERY_KIND
def test_symbolic_outputs_have_the_real_shapes(kind):
    layer = grouped_query(kind)
    query, value = keras.Input((10, 8)), keras.Input((15, 8))
    assert layer(query, value).shape == (None, 10, 8)
    if kind != "keras":  # in Keras 3.10 its layer has no symbolic scores
        output, scores = layer(query, value, return_attention_scores=True)
        assert output.shape == (None, 10, 8)
        assert scores.shape == (None, 6, 10, 15)
    real = layer(normal((2, 10, 8)), normal((2, 15, 8)), return_attention_scores=True)
    assert [tuple(x.shape) for x in real] == [(2, 10, 8), (2, 6, 10, 15)]


@EVERY_KIND
def test_one_initializer_gives_every_kernel_its_own_values(kind):
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    options = dict(num_query_heads=4, num_key_value_heads=4)
    layer = grouped_query(kind, kernel_initializer=initializer, **options)
    layer.build((2, 4, 16), (2, 4, 16))
    kernels = [w.numpy().ravel() for w in layer.trainable_weights if w.name == "kernel"]
    assert len(kernels) == 4
    for i in range(4):
        assert np.std(kernels[i]) > 0.01
        for j in range(i):
            assert abs(np.corrcoef(kernels[i], kernels[j])[0, 1]) < 0.5


TOKENS = np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]])


@EVERY_KIND
# Keras' layer warns of its own dense layers
@pytest.mark.filterwarnings("ignore:Exception encountered when calling GroupedQuery")
@pytest.mark.filterwarnings("ignore:Layer .* .of type EinsumDense. was passed an input")
def test_the_mask_of_the_query_goes_on(kind):
    query = keras.layers.Embedding(4, 8, mask_zero=True)(TOKENS)
    layer = grouped_query(kind)
    assert layer.supports_masking
    output = layer(query, normal((3, 3, 8)))
    np.testing.assert_array_equal(output._keras_mask, TOKENS != 0)


@OUR_KINDS
@pytest.mark.parametrize("causal", [False, True])
def test_implicit_masks_mean_what_a_full_mask_means_in_keras(kind, causal):
    tokens = TOKENS if causal else np.array([[5, 4, 0], [3, 0, 0], [2, 1, 1]])
    embed = keras.layers.Embedding(6, 8, mask_zero=True)
    query, value = embed(TOKENS), embed(tokens)
    expected, layer = pair(grouped_query, kind, [query.shape, value.shape])
    output = layer(query, value, use_causal_mask=causal)
    seen = (TOKENS != 0)[:, :, np.newaxis] & (tokens != 0)[:, np.newaxis]
    if causal:
        seen &= np.tril(np.ones(seen.shape[1:], bool))
    wanted = expected(query.numpy(), value.numpy(), attention_mask=seen)
    rows = seen.any(-1)
    assert relative_error(output.numpy()[rows], wanted.numpy()[rows]) < 1e-5
    # Keras gives the mean of all values where nothing is seen; here that is 0
    assert 0 < rows.sum() < rows.size
    bias = np.broadcast_to(layer.output_dense.bias, output.numpy()[~rows].shape)
    np.testing.assert_array_equal(output.numpy()[~rows], bias)


def functional(make):
    query, value = keras.Input((T, 8)), keras.Input((S, 8))
    return keras.Model(
        [query, value], make("second")(make("first")(query, value), value)
    )


class Attributes(keras.Model):
    def __init__(self, make):
        super().__init__()
        self.first, self.others = make("first"), [make("second")]

    def call(self, inputs):
        query, value = inputs
        return self.others[0](self.first(query, value), value)


@OUR_KINDS
@pytest.mark.parametrize("make_model", [functional, Attributes])
def test_weights_of_keras_load_by_name(kind, make_model):
    inputs = [normal((B, T, 8)), normal((B, S, 8), 1)]
    expected = make_model(lambda name: grouped_query("keras", name=name))
    loaded = make_model(lambda name: grouped_query(kind, name=name))
    assert relative_error(loaded(inputs), expected(inputs)) > 0.05
    expected.save_weights("keras.weights.h5")
    loaded.load_weights("keras.weights.h5")
    assert relative_error(loaded(inputs), expected(inputs)) < 1e-5
