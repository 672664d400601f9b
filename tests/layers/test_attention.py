"""What every attention layer has, whatever its mechanism."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, ops
from keras_performer.layers import AttentionLayer, ExactAttention
from tests.contract import relative_error
from tests.layers.inputs import normal, small_layer

B, T, S, DIM = 2, 5, 7, 6


class FirstKey(AttentionLayer):
    """Each query gets the value of the first key that it sees, and no other."""

    projections = ("value",)

    def attend(self, query, key, value, visible, state=None, training=None):
        assert query is None and key is None
        seen = tf.broadcast_to(visible.matrix(T, T), (B, T, T))
        first = tf.argmax(tf.cast(seen, tf.int32), -1)
        return tf.gather(value, first, axis=1, batch_dims=1), None


def exact(**options):
    return ExactAttention(3, 4, **options)


LAYERS = {"exact": exact, "performer": small_layer}
EVERY_LAYER = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def test_read_joins_all_that_says_who_sees_whom():
    layer = exact()
    x = normal((B, T, DIM))
    layer.build(x.shape)
    left, right = np.array([[0, 1, 1, 1, 1]], bool), np.array([[1, 1, 1, 0, 1]], bool)
    inputs = layer.read(x, query_mask=left, key_mask=right, use_causal_mask=True)
    assert inputs.query is inputs.key is inputs.value is x
    np.testing.assert_array_equal(inputs.query_mask, np.repeat(left, B, 0))
    assert isinstance(inputs.visible, ops.Visibility)
    assert inputs.visible.causal
    # without a value the query is the key, whose mask is that of the query
    np.testing.assert_array_equal(
        inputs.visible.key_mask, np.repeat(left & right, B, 0)
    )
    value = normal((B, T, DIM), 1)
    inputs = layer.read(x, value, query_mask=left)
    assert inputs.key is inputs.value is value
    assert inputs.visible.key_mask is None and not inputs.visible.causal


def test_call_is_read_project_attend_write():
    layer = small_layer(dropout=0.5)
    query, value = normal((B, T, DIM)), normal((B, S, 9), 1)
    mask = np.ones((B, T), bool)
    mask[0, 3] = False
    expected = layer(query, value, query_mask=mask)
    inputs = layer.read(tf.constant(query), tf.constant(value), query_mask=mask)
    q, k, v = (
        layer.project(name, getattr(inputs, name)) for name in ("query", "key", "value")
    )
    assert q.shape == (B, T, 3, 4) and k.shape == v.shape == (B, S, 3, 4)
    kernel, bias = layer.key_dense.get_weights()
    right = np.einsum("bsd,dkh->bskh", value, kernel) + bias
    assert relative_error(k, right) < 1e-6
    attended, state = layer.attend(q, k, v, inputs.visible)
    assert state is None and attended.shape == (B, T, 3, 4)
    output = layer.write(attended, inputs.query_mask)
    np.testing.assert_array_equal(output, expected)
    kernel, bias = layer.output_dense.get_weights()
    right = np.einsum("btnv,nvd->btd", attended * mask[..., None, None], kernel) + bias
    assert relative_error(output, right) < 1e-6
    dropped = layer.write(attended, inputs.query_mask, training=True)
    assert relative_error(dropped, output) > 0.05


def test_a_mechanism_has_the_projections_that_it_names():
    layer = FirstKey(3, 4)
    x = normal((B, T, DIM))
    mask = np.array([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1]], bool)
    output = layer(x, key_mask=mask)
    assert [w.path.split("/")[1] for w in layer.weights] == [
        *("value", "value"),
        *("attention_output", "attention_output"),
    ]
    kernel, bias, out_kernel, out_bias = layer.get_weights()
    first = x[[0, 1], [2, 0]]
    value = np.einsum("bd,dkv->bkv", first, kernel) + bias
    right = np.einsum("bkv,kvd->bd", value, out_kernel) + out_bias
    assert relative_error(output, np.repeat(right[:, np.newaxis], T, axis=1)) < 1e-6


def test_what_a_mechanism_does_not_have_is_said():
    x = normal((B, T, DIM))
    with pytest.raises(
        NotImplementedError, match="AttentionLayer must define `attend`"
    ):
        AttentionLayer(3, 4)(x)
    layer = FirstKey(3, 4)
    with pytest.raises(ValueError, match="FirstKey has no attention scores"):
        layer(x, return_attention_scores=True)
    for ask in (
        lambda: layer.get_initial_state(B),
        lambda: layer(x, return_state=True),
        lambda: layer(x, state={}, use_causal_mask=True),
        lambda: exact().get_initial_state(B),
        lambda: exact(causal=True)(x, return_state=True),
        lambda: exact(causal=True)(x, state={"position": 0, "attention": None}),
    ):
        with pytest.raises(
            ValueError, match=r"has no state.*PerformerAttention\(causal"
        ):
            ask()

    class NotCausal(FirstKey):
        supports_causal = False

    for ask in (
        lambda: NotCausal(3, 4, causal=True),
        lambda: NotCausal(3, 4)(x, use_causal_mask=True),
    ):
        with pytest.raises(ValueError, match="NotCausal cannot hide later tokens"):
            ask()


def shapes_of(outputs):
    """Shapes and dtypes, in a nest like `outputs`."""
    dtype = keras.backend.standardize_dtype
    return tf.nest.map_structure(lambda x: (tuple(x.shape), dtype(x.dtype)), outputs)


SPECS = {
    "self": ([(B, T, DIM)], {}, {}),
    "cross": ([(B, T, DIM), (B, S, 9), (B, S, 8)], dict(output_shape=(3, 2)), {}),
    "bfloat16": ([(B, T, DIM)], dict(dtype="mixed_bfloat16"), {}),
    "unknown": ([(None, None, DIM)], {}, {}),
    "scores": (
        [(B, T, DIM), (B, S, 9)],
        dict(dropout=0.5),
        dict(return_attention_scores=True),
    ),
}


@pytest.mark.parametrize(
    "make, case", [*((small_layer, case) for case in SPECS), (exact, "cross")]
)
def test_the_spec_of_a_layer_that_is_not_built(make, case):
    shapes, options, call = SPECS[case]
    layer = make(seed=None, **options)
    keras.utils.set_random_seed(3)
    before = random.getstate()
    spec = layer.compute_output_spec(*map(keras.KerasTensor, shapes), **call)
    # neither weights nor what weights are drawn from
    assert not layer.built and not layer.variables
    assert random.getstate() == before
    real = layer(*(normal([n or 2 for n in shape]) for shape in shapes), **call)
    symbolic = layer.compute_output_spec(*map(keras.KerasTensor, shapes), **call)
    assert shapes_of(spec) == shapes_of(symbolic)
    if case != "unknown":
        assert shapes_of(spec) == shapes_of(real)
    else:
        assert spec.shape == (None, None, DIM)


def test_the_spec_of_a_state():
    layer = small_layer(causal=True)
    x = keras.KerasTensor((B, T, DIM))
    spec = layer.compute_output_spec(x, return_state=True)
    assert not layer.variables
    real = layer(normal((B, T, DIM)), return_state=True)
    assert shapes_of(spec) == shapes_of(real)
    spec = small_layer(causal=True).compute_output_spec(
        query=x, state=layer.get_initial_state(B), return_state=True
    )
    assert shapes_of(spec) == shapes_of(real)


@EVERY_LAYER
def test_a_spec_has_the_errors_of_a_call(make):
    x, value = keras.KerasTensor((B, T, DIM)), keras.KerasTensor((B, S, DIM))
    mask = keras.KerasTensor((B, T, S), dtype="bool")
    of_rank_2 = keras.KerasTensor((B, S), dtype="bool")
    for arguments, options, message in (
        ((x, value), dict(attention_mask=mask), "must not differ by query"),
        ((x, value), dict(attention_mask=of_rank_2), r"\(B, 1, S\).*key_mask"),
        ((x, value), dict(key_mask=np.ones((B, T), bool)), "key_mask must have shape"),
        ((x, value), dict(use_causal_mask=True), "as many queries as keys"),
        ((x, value, x), {}, "value and key must have the same shape"),
        ((x,), dict(return_state=True), "state"),
    ):
        with pytest.raises(ValueError, match=message):
            make().compute_output_spec(*arguments, **options)


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_inputs_must_be_one_tensor_each(built, symbolic):
    x = keras.Input((T, DIM)) if symbolic else normal((B, T, DIM))
    for inputs, name in (
        (({"query": x, "value": x},), "query"),
        (([x, x],), "query"),
        ((x, {"value": x}), "value"),
        ((x, x, [x]), "key"),
    ):
        layer = small_layer()
        if built:
            layer.build((B, T, DIM))
        message = rf"{name} must be one tensor.*layer\(query, value, key\).*Received"
        with pytest.raises(ValueError, match=message):
            layer(*inputs)


def test_positions_count_tokens():
    layer = PerformerAttention(2, 4, num_random_features=6, causal=True)
    x = normal((B, T, DIM))
    state = layer.get_initial_state(B)
    np.testing.assert_array_equal(state["position"], [0, 0])
    _, state = layer(x, state=state, return_state=True)
    _, state = layer(x[:, :2], state=state, return_state=True)
    np.testing.assert_array_equal(state["position"], [T + 2, T + 2])
    assert state["position"].dtype == tf.int32
