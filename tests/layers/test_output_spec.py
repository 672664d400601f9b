"""A symbolic call of linear attention says of which shapes the loops' results are."""

import functools

import keras
import pytest
import tensorflow as tf

from keras_performer.layers import PerformerAttention, performer
from keras_performer.ops.linear_attention import linear_attention

B, T, DIM = 2, 11, 6
WINDOW = dict(exact_window=3)


def shapes_of(outputs):
    """Shapes and dtypes, in a nest like `outputs`."""
    return tf.nest.map_structure(lambda x: (tuple(x.shape), x.dtype), outputs)


def check_like(found, traced):
    """Checks that shapes and dtypes agree, where traced knows them."""
    tf.nest.assert_same_structure(found, traced)
    for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(traced), strict=True):
        assert x.dtype == y.dtype.name
        assert len(x.shape) == len(y.shape)
        assert all(b in (a, None) for a, b in zip(x.shape, y.shape))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "options", "call"),
    [
        ((None, None, DIM), dict(causal=True, **WINDOW), dict(return_state=True)),
        (
            (B, None, DIM),
            dict(causal=True, dtype="mixed_bfloat16", num_key_value_heads=2, **WINDOW),
            dict(return_state=True),
        ),
        ((B, T, DIM), dict(causal=True, dtype="float64"), dict(return_state=True)),
        ((None, T, DIM), dict(rotary=True), {}),
    ],
)
def test_shapes_are_those_of_the_loops(shape, options, call):
    layer = PerformerAttention(4, 2, num_random_features=8, seed=0, **options)
    layer.build(shape)
    x = keras.KerasTensor(shape)
    spec = layer.compute_output_spec(x, **call)
    call_of_tensors = tf.function(functools.partial(layer.call, **call))
    traced = call_of_tensors.get_concrete_function(tf.TensorSpec(shape))
    check_like(spec, traced.structured_outputs)
    if call:  # and going on from the state, or with segments
        later = layer.compute_output_spec(x, state=spec[1], **call)
        assert shapes_of(later) == shapes_of(spec)
        ids = keras.KerasTensor(shape[:2], dtype="int32")
        packed = layer.compute_output_spec(x, segment_ids=ids, **call)
        assert packed[1].pop("segment").dtype == "int64"
        assert shapes_of(packed) == shapes_of(spec)


def test_errors_come_when_a_model_is_made():
    layer = PerformerAttention(2, 4, num_random_features=8, **WINDOW)
    with pytest.raises(ValueError, match="exact_window needs one key for each query"):
        layer(keras.Input((T, DIM)), keras.Input((T + 1, DIM)))
    layer = PerformerAttention(2, 4, num_random_features=8, causal=True, **WINDOW)
    x = keras.Input((T, DIM), batch_size=B)
    state = layer.get_initial_state(B)
    del state["attention"]["seen"]
    with pytest.raises(ValueError, match='must be a dict of "running_max"'):
        layer(x, state=state, return_state=True)


def test_a_call_attends_to_all_tokens_after_a_symbolic_one():
    layer = PerformerAttention(2, 4, exact_window=T, num_random_features=8)
    x = keras.random.normal((B, T, DIM), seed=0)
    layer.compute_output_spec(keras.KerasTensor((B, T, DIM)))
    layer(keras.Input((T, DIM)))
    last_changed = keras.ops.concatenate([x[:, :-1], -x[:, -1:]], 1)
    assert float(abs(layer(x) - layer(last_changed))[:, 0].numpy().max()) > 1e-3


def test_a_model_under_a_strategy_is_traced_once_to_be_trained(monkeypatch):
    """Keras traces it before for its outputs' shapes: that takes no loops."""
    traced = []

    def counted(query, *args, **kwargs):
        traced.append(tf.executing_eagerly() or query.graph.name)
        return linear_attention(query, *args, **kwargs)

    monkeypatch.setattr(performer, "linear_attention", counted)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        layer = PerformerAttention(2, 4, causal=True, num_random_features=8, seed=0)
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
    layer = InPairs(2, 4, num_random_features=8)
    assert layer(keras.Input((10, DIM))).shape == (None, 10, DIM)
    with pytest.raises(ValueError, match="in pairs"):
        layer(keras.Input((9, DIM)))
