"""The signatures of an exported model: the whole sequence, a prompt, and steps."""

import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer.models import exported
from tests.layers.inputs import language_model

IDS = np.random.default_rng(0).integers(0, 11, (3, 17)).astype("int32")
PROMPT = 5


def with_every_state(max_length=17, num_layers=2):
    """Returns a model with a window, convolutions, positions, and one block without."""
    attention = keras_performer.PerformerAttention(
        2, 4, num_random_features=6, causal=True, exact_window=3, seed=2
    )
    return language_model(
        max_length=max_length,
        num_layers=num_layers,
        attention=[attention, "none"][:num_layers],
        conv_kernel_size=3,
        position_embedding="learned",
    )


@pytest.mark.slow
def test_prefill_and_steps_are_the_model_on_the_whole_sequence():
    """`tests/examples/test_serving_model.py` runs a model without this package."""
    model = with_every_state()
    model.export("model", verbose=False)
    expected = model(IDS)
    signatures = tf.saved_model.load("model").signatures
    for name in ("serve", "serving_default"):
        (outputs,) = signatures[name](tf.constant(IDS)).values()
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
    decode = signatures["decode"]
    first = model.get_initial_state(1)
    names = exported.state_names(first)
    assert {*decode.structured_input_signature[1]} == {"tokens", *names}
    assert {*decode.structured_outputs} == {"logits", *names}
    size = sum(np.asarray(x).nbytes for x in tf.nest.flatten(first))
    for rows in (1, len(IDS)):
        tokens = tf.constant(IDS[:rows])
        state = signatures["prefill"](tokens=tokens[:, :PROMPT])
        logits = [state.pop("logits")]
        for t in range(PROMPT, tokens.shape[1]):
            # the bytes for a sequence do not grow with its position
            assert sum(x.numpy().nbytes for x in state.values()) == rows * size
            state = decode(tokens=tokens[:, t : t + 1], **state)
            logits.append(state.pop("logits"))
        steps = np.stack(logits, axis=1)
        np.testing.assert_allclose(steps, expected[:rows, PROMPT - 1 :], atol=1e-5)


def test_a_model_without_a_state_has_the_forward_pass_alone():
    assert not exported.has_state(language_model(causal=False))
    model = language_model(max_length=17, attention="exact")
    model.export("model", verbose=False)
    signatures = tf.saved_model.load("model").signatures
    assert {*signatures} == {"serve", "serving_default"}
    (outputs,) = signatures["serve"](tf.constant(IDS)).values()
    np.testing.assert_allclose(outputs, model(IDS), atol=1e-5)


def test_names_are_paths_in_the_order_of_the_state():
    state = {"position": 1, "blocks": [{"b": 2, "a": (3, 4)}, ()], "embedding": ()}
    names = exported.state_names(state)
    assert dict(zip(names, tf.nest.flatten(state))) == {
        "state_position": 1,
        "state_blocks_0_b": 2,
        "state_blocks_0_a_0": 3,
        "state_blocks_0_a_1": 4,
    }


@pytest.mark.parametrize(
    "state, named",
    [({"a": {"b": 1}, "a_b": 2}, "state_a_b"), ({"a/b": 1}, "state_a/b")],
)
def test_names_that_signatures_cannot_have_raise(state, named):
    with pytest.raises(ValueError, match=f"rename them.*Received: .*{named}"):
        exported.state_names(state)
