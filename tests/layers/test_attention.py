"""Properties of every attention layer, whatever its mechanism."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

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
