"""Properties of all attention layers, whatever their mechanism."""

import functools
import random

import keras
import pytest
import tensorflow as tf

from keras_performer.layers import PerformerAttention, performer
from keras_performer.ops.windowed import linear_attention
from tests.layers.inputs import normal, small_layer

B, T, S, DIM = 2, 5, 7, 6


def shapes_of(outputs):
    """Returns shapes and dtypes, in a nest like `outputs`."""
    dtype = keras.backend.standardize_dtype
    return tf.nest.map_structure(lambda x: (tuple(x.shape), dtype(x.dtype)), outputs)


SPECS = {
    "cross": ([(B, T, DIM), (B, S, 9), (B, S, 8)], dict(output_shape=(3, 2)), {}),
    "unknown": ([(None, None, DIM)], {}, {}),
    "scores": (
        [(B, T, DIM), (B, S, 9)],
        dict(dropout=0.5, dtype="mixed_bfloat16"),
        dict(return_attention_scores=True),
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_the_spec_of_a_layer_that_is_not_built(case):
    shapes, options, call = SPECS[case]
    layer = small_layer(seed=None, **options)
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


@pytest.mark.parametrize(
    "dtype", [pytest.param("mixed_bfloat16", marks=pytest.mark.slow), "float64"]
)
def test_the_spec_of_a_state_is_that_of_the_loops(dtype):
    def layer():
        options = dict(causal=True, exact_window=3, num_key_value_heads=2)
        return PerformerAttention(4, 2, dtype=dtype, **options)

    shape, with_state = (B, None, DIM), dict(return_state=True)
    x = keras.KerasTensor(shape)
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
