"""Properties of all attention layers, whatever their mechanism."""

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import (
    AttentionLayer,
    ExactAttention,
    PerformerAttention,
    performer,
)
from keras_performer.ops.linear_attention import linear_attention
from tests.contract import relative_error
from tests.layers.inputs import normal, small_layer

B, T, S, DIM = 2, 5, 7, 6


class FirstKey(AttentionLayer):
    """Attention in which each query gets the value of the first visible key."""

    projections = ("value",)

    def attend(self, query, key, value, visible, state=None, training=None):
        assert query is None and key is None
        seen = tf.broadcast_to(visible.matrix(T, T), (B, T, T))
        first = tf.argmax(tf.cast(seen, tf.int32), -1)
        return tf.gather(value, first, axis=1, batch_dims=1), None


def exact(**options):
    return ExactAttention(3, 4, **options)


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
    with pytest.raises(NotImplementedError, match="Layer must define `attend`"):
        AttentionLayer(3, 4)(x)
    for layer in FirstKey(3, 4), exact():
        with pytest.raises(ValueError, match=r"no state.*PerformerAttention\(causal"):
            layer(x, state={}, use_causal_mask=True)


def shapes_of(outputs):
    """Returns shapes and dtypes, in a nest like `outputs`."""
    dtype = keras.backend.standardize_dtype
    return tf.nest.map_structure(lambda x: (tuple(x.shape), dtype(x.dtype)), outputs)


SPECS = {
    "self": ([(B, T, DIM)], {}, {}),
    "cross": ([(B, T, DIM), (B, S, 9), (B, S, 8)], dict(output_shape=(3, 2)), {}),
    "unknown": ([(None, None, DIM)], {}, {}),
    "scores": (
        [(B, T, DIM), (B, S, 9)],
        dict(dropout=0.5, dtype="mixed_bfloat16"),
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
    # it has neither weights nor seeds
    assert not layer.built and not layer.variables
    assert random.getstate() == before
    real = layer(*(normal([n or 2 for n in shape]) for shape in shapes), **call)
    symbolic = layer.compute_output_spec(*map(keras.KerasTensor, shapes), **call)
    assert shapes_of(spec) == shapes_of(symbolic)
    if case != "unknown":
        assert shapes_of(spec) == shapes_of(real)
    else:
        assert spec.shape == (None, None, DIM)


def check_like(found, traced):
    """Checks that shapes and dtypes agree, where `traced` knows them."""
    tf.nest.assert_same_structure(found, traced)
    for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(traced), strict=True):
        assert x.dtype == y.dtype.name
        assert len(x.shape) == len(y.shape)
        assert all(b in (a, None) for a, b in zip(x.shape, y.shape))


WINDOW = dict(exact_window=3)
IN_HALF = dict(dtype="mixed_bfloat16", num_key_value_heads=2)
IN_DOUBLE = dict(dtype="float64")


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        pytest.param((None, None, DIM), WINDOW, marks=pytest.mark.slow),
        pytest.param((B, None, DIM), WINDOW | IN_HALF, marks=pytest.mark.slow),
        ((B, T, DIM), IN_DOUBLE),
    ],
)
def test_the_spec_of_a_state_is_that_of_the_loops(shape, options):
    def layer():
        return PerformerAttention(4, 2, causal=True, **options)

    x, with_state = keras.KerasTensor(shape), dict(return_state=True)
    spec = layer().compute_output_spec(x, **with_state)
    traced = layer()
    traced.build(shape)
    call = tf.function(functools.partial(traced.call, **with_state))
    outputs = call.get_concrete_function(tf.TensorSpec(shape)).structured_outputs
    check_like(spec, outputs)
    # also when it continues from the state, or with segments
    later = layer().compute_output_spec(query=x, state=spec[1], **with_state)
    assert shapes_of(later) == shapes_of(spec)
    ids = keras.KerasTensor(shape[:2], dtype="int32")
    packed = layer().compute_output_spec(x, segment_ids=ids, **with_state)
    assert packed[1].pop("segment").dtype == "int64"
    assert shapes_of(packed) == shapes_of(spec)


def test_a_spec_has_the_errors_of_a_call():
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
            small_layer().compute_output_spec(*arguments, **options)


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_inputs_must_be_one_tensor_of_three_axes_each(built, symbolic):
    x, flat, deep = (
        keras.Input(shape[1:]) if symbolic else normal(shape)
        for shape in ((B, T, DIM), (B, DIM), (B, T, 3, DIM))
    )
    of_nest = r"{0} must be one tensor.*layer\(query, value, key\).*Received"
    of_rank = r"{0} must have shape \(batch, length, features\).*Received: {0} of shape"
    for name, before in (("query", ()), ("value", (x,)), ("key", (x, x))):
        for wrong, message in (
            ({"query": x, "value": x}, of_nest),
            ([x, x], of_nest),
            (flat, of_rank),
            (deep, of_rank),
        ):
            layer = small_layer()
            if built:
                layer.build((B, T, DIM))
            with pytest.raises(ValueError, match=message.format(name)):
                layer(*before, wrong)


def test_a_call_attends_to_all_tokens_after_a_symbolic_one():
    layer = PerformerAttention(2, 4, exact_window=T)
    x = keras.random.normal((B, T, DIM), seed=0)
    layer.compute_output_spec(keras.KerasTensor((B, T, DIM)))
    layer(keras.Input((T, DIM)))
    last_changed = keras.ops.concatenate([x[:, :-1], -x[:, -1:]], 1)
    assert float(abs(layer(x) - layer(last_changed))[:, 0].numpy().max()) > 1e-3


def test_a_model_under_a_strategy_is_traced_once_to_be_trained(monkeypatch):
    """Keras also traces it for the shapes of outputs, but this runs no loops."""
    traced = []

    def counted(query, *args, **kwargs):
        traced.append(tf.executing_eagerly() or query.graph.name)
        return linear_attention(query, *args, **kwargs)

    monkeypatch.setattr(performer, "linear_attention", counted)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        layer = PerformerAttention(2, 4, causal=True, seed=0)
        model = keras.Sequential([keras.Input((T, DIM)), layer])
        model.compile("sgd", "mse", jit_compile=False)
    x = keras.random.normal((B, T, DIM), seed=0)
    model.fit(x, x, batch_size=B, verbose=0)
    assert len(traced) == 1
    assert "scratch" not in traced[0]


class InPairs(PerformerAttention):
    def attend(self, query, key, value, visible, state=None, training=None):
        if query.shape[1] % 2:
            raise ValueError("tokens must come in pairs")
        return super().attend(query, key, value, visible, state, training)


def test_a_subclass_is_traced_as_it_stands():
    layer = InPairs(2, 4)
    assert layer(keras.Input((10, DIM))).shape == (None, 10, DIM)
    with pytest.raises(ValueError, match="in pairs"):
        layer(keras.Input((9, DIM)))
