"""States of causal layers: a sequence in any pieces gives the same as in one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import layers
from tests.cases import CASES
from tests.contract import relative_error
from tests.layers.inputs import in_pieces, normal, small_layer
from tests.layers.twins import randomize

LENGTH = 11


def attention_of(state):
    """Returns the tensors `running_max` and `sums` of a layer's state."""
    return [state["attention"]["running_max"], state["attention"]["sums"]]


# All attention with a state, also with windows, gates, positions and scales.
STATEFUL = [
    name
    for name, case in CASES.items()
    if issubclass(case.layer_class, layers.AttentionLayer)
    and case.layer_class.supports_state
    and case.arguments.get("causal")
]
AROUND = ["block", "block_without_attention", "block_conv_causal", "decoder"]
MASK = np.ones((2, LENGTH), bool)
MASK[0, :5] = False  # left padding that fills a whole piece
MASK[1, 6:9] = False
# a segment that ends with a piece, one of one token, and an id that repeats later
IDS = np.array([[7] * 5 + [2] + [7] * 5, [3] * 8 + [1] * 3])


@pytest.mark.parametrize("name", [*STATEFUL, *AROUND])
def test_pieces_of_every_layer_are_the_whole(name):
    """Tests pieces with masks, and packed sequences that are cut anywhere."""
    case = CASES[name]
    layer = case.make(dtype="float64")
    layer.build((2, None, *case.widths))
    randomize(layer)
    # layers inside of others have their own dtype
    tolerance = 1e-5 if name in AROUND else 1e-6
    x = normal((2, LENGTH, *case.widths), 1, dtype="float64")
    for given in ({}, {"segment_ids": IDS}):
        given = {**given, case.mask_name(): MASK}
        whole, last = layer(x, return_state=True, **given)
        output, state = in_pieces(layer, x, 5, 6, 7, **given)
        np.testing.assert_allclose(output, whole, atol=tolerance)
        tf.nest.assert_same_structure(state, last)
        flat = zip(*map(tf.nest.flatten, (state, last)), strict=True)
        for one, other in flat:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(one, other, atol=tolerance)
    # tokens without ids continue the last segment
    _, state = layer(x[:, :9], segment_ids=IDS[:, :9], return_state=True)
    output, state = layer(x[:, 9:], state=state, return_state=True)
    expected = layer(x, segment_ids=IDS)[:, 9:]
    np.testing.assert_allclose(output, expected, atol=tolerance)
    if name in STATEFUL:
        assert state["position"].numpy().tolist() == [LENGTH, LENGTH]
        np.testing.assert_array_equal(state["segment"], IDS[:, 8])


@pytest.mark.parametrize("options", [{}, {"exact_window": 3}, {"value_dim": 2}])
def test_a_layer_that_is_not_built_has_the_first_state(options):
    """Keras' linear attention is planned to have this: keras-team/keras#23555."""
    layer = layers.PerformerAttention(
        4, 3, causal=True, num_key_value_heads=2, **options
    )
    before = layer.initial_state(2)  # the earlier name of `get_initial_state`
    assert not layer.built
    x = normal((2, LENGTH, 7))
    after = layer(x, state=before, return_state=True)
    whole = layer(x, return_state=True)
    for got, right in zip(*map(tf.nest.flatten, (after, whole)), strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_a_bfloat16_layer_loses_nothing_of_a_float32_state():
    layer = small_layer(causal=True, dtype="mixed_bfloat16")
    x = normal((1, 1, 7))
    layer(x)
    state = layer.get_initial_state(1)
    for name, part in state["attention"].items():
        state["attention"][name] = tf.constant(normal(part.shape, 3))
    # no visible new token, so the state must not change
    _, after = layer(x, state=state, return_state=True, key_mask=np.zeros((1, 1), bool))
    for one, other in zip(attention_of(after), attention_of(state)):
        np.testing.assert_array_equal(one, other)


def test_functional_model_with_a_state():
    layer = small_layer(causal=True, dtype="mixed_bfloat16")
    x = keras.Input((None, 7))
    state = tf.nest.map_structure(
        lambda part: keras.Input(part.shape[1:], dtype=part.dtype.name),
        layer.get_initial_state(1),
    )
    output, new_state = layer(x, state=state, return_state=True)
    for new, old in zip(tf.nest.flatten(new_state), tf.nest.flatten(state)):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert [s.dtype for s in attention_of(new_state)] == ["float32", "float32"]
    model = keras.Model([x, state], [output, new_state])
    model.save("step.keras")
    restored = keras.saving.load_model("step.keras")
    sequence = tf.constant(normal((2, LENGTH, 7)))
    first, middle = restored([sequence[:, :4], layer.get_initial_state(2)])
    second, _ = restored([sequence[:, 4:], middle])
    whole = layer(sequence)
    assert relative_error(tf.concat([first, second], 1), whole) < 1e-2
    predicted = restored.predict([sequence, layer.get_initial_state(2)], verbose=0)
    assert relative_error(predicted[0], whole) < 1e-2


def test_state_in_a_compiled_while_loop():
    layer = small_layer(causal=True)
    x = tf.constant(normal((2, LENGTH, 7)))
    whole = layer(x)

    @tf.function(jit_compile=True)
    def decode(x):
        def step(t, state, outputs):
            token = tf.gather(x, [t], axis=1)
            output, state = layer(token, state=state, return_state=True)
            return t + 1, state, outputs.write(t, output[:, 0])

        outputs = tf.TensorArray(x.dtype, LENGTH, element_shape=(2, 7))
        start = (0, layer.get_initial_state(2), outputs)
        *_, outputs = tf.while_loop(lambda t, *_: t < LENGTH, step, start)
        return tf.transpose(outputs.stack(), (1, 0, 2))

    assert relative_error(decode(x), whole) < 1e-5
    assert decode.experimental_get_tracing_count() == 1


def test_a_bidirectional_layer_has_a_state_in_causal_calls_only():
    x = normal((1, 3, 7))
    bidirectional, causal = small_layer(), small_layer(causal=True)
    state = causal.get_initial_state(1)
    with pytest.raises(ValueError, match="causal=True.*state=given"):
        bidirectional(x, state=state)
    _, used = bidirectional(x, use_causal_mask=True, return_state=True)
    shapes = [tf.nest.map_structure(lambda x: x.shape, one) for one in (used, state)]
    assert shapes[0] == shapes[1]
    output, scores, _ = causal(x, return_attention_scores=True, return_state=True)
    assert (output.shape, scores.shape) == ((1, 3, 7), (1, 3, 3, 3))
