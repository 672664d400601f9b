"""Arguments and inputs that `PerformerLM` refuses, besides `tests/wrong_uses`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM
from keras_performer.layers import ExactAttention
from keras_performer.zoo import TokenMixing
from tests.layers.inputs import language_model
from tests.models.kinds import GATING, local
from tests.models.token_models import IDS, small_model

LAYER = PerformerAttention(2, 4, causal=True)
MIXER = dict(attention=TokenMixing(16, 6), causal=False)


@pytest.mark.parametrize(
    "message, options",
    [
        ("dropout must be a float", dict(dropout=1.0)),
        ("autocast must be False.*autocast=True", dict(autocast=True)),
        # options
        ("PerformerLM has no argument num_layer: .*num_layers", dict(num_layer=4)),
        ("rotary is no option of PerformerLM", dict(rotary=True)),
        (": chunk_size. Leave", dict(chunk_size=8, **MIXER)),
        # attention
        ("must be an AttentionLayer", dict(attention=keras.layers.Dense(1))),
        ("or a list of these", dict(attention=["exact", None])),
        ("have the same causal as", dict(attention=GATING, causal=False)),
        ("have the same num_heads as", dict(attention=LAYER, num_heads=4)),
        ("have the same num_heads as", dict(attention=["exact", ExactAttention(4, 2)])),
        # positions
        ("key_dim must be", dict(hidden_dim=6, position_embedding="rotary")),
        (
            "key_dim must be divisible by 2",
            dict(
                attention=["exact", ExactAttention(2, 3, causal=True)],
                position_embedding="rotary",
            ),
        ),
        (
            "attention must have rotary=None",
            dict(attention=local(rotary=True), position_embedding="learned"),
        ),
        ("need max_length", dict(max_length=None, position_embedding="learned")),
        ("need max_length", dict(max_length=None, hidden_dim=6)),
        # chunks
        ("needs a state.*SpatialG", dict(attention=GATING, recompute="network")),
        ("needs the methods `absorb`.*TokenMixing", dict(recompute="block", **MIXER)),
        (
            "without a forget gate",
            dict(causal=False, forget_gate=True, recompute="block"),
        ),
        (
            "bidirectional convolution.*recompute=None",
            dict(conv_kernel_size=3, causal=False, recompute="block"),
        ),
    ],
)
def test_what_does_not_fit_is_refused(message, options):
    with pytest.raises(ValueError, match=message):
        language_model(**{"num_layers": 2, **options})


def test_sequences_that_are_too_long_raise():
    model = small_model(attention=TokenMixing(8, 6), causal=False)
    with pytest.raises(ValueError, match="longer than max_length=8, of 11 tokens"):
        model(IDS)
    model = small_model()
    _, state = model(IDS, return_state=True)
    model(IDS[:, :5], state=state)
    error = tf.errors.InvalidArgumentError
    with pytest.raises(error, match="max_length=16"):
        model(IDS[:, :6], state=state)
    ids = tf.TensorSpec((None, None), tf.int32)
    graph = tf.function(model, input_signature=[ids])
    with pytest.raises(error, match="max_length=16"):
        graph(tf.zeros((1, 17), tf.int32))


@pytest.mark.parametrize("position_embedding", ["learned", "rotary"])
def test_longer_sequences_are_refused_where_xla_compiles(position_embedding):
    """XLA leaves out assertions, so positions would start again."""
    options = dict(position_embedding=position_embedding, feature_map="relu")
    model = language_model(9, 6, 1, 1, 4, **options)
    compiled = tf.function(
        lambda ids: model(ids),
        input_signature=[tf.TensorSpec((None, None), tf.int32)],
        jit_compile=True,
    )
    ids = np.ones((2, 6), "int32")
    np.testing.assert_allclose(compiled(ids), model(ids), rtol=1e-4, atol=1e-5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="make_PerformerLM_with_a_m"
    ):
        compiled(np.ones((2, 7), "int32"))


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_state_of_another_depth_raises(num_layers):
    state = small_model(num_layers=num_layers).get_initial_state(4)
    with pytest.raises(ValueError, match=f", 2. Received: the states of {num_layers}"):
        small_model()(IDS, state=state, return_state=True)


@pytest.mark.parametrize("recompute", [None, "network"])
def test_inputs_are_one_tensor(recompute):
    model = small_model(recompute)
    for inputs, name in (({"a": IDS}, "dict"), ([IDS], "tuple")):
        with pytest.raises(ValueError, match=f"one int tensor .* of type {name}"):
            model.fit(inputs, IDS, verbose=0)


def test_an_embedding_of_another_width_is_refused():
    model = small_model(embedding=keras.layers.Embedding(11, 1))
    with pytest.raises(ValueError, match=r"hidden_dim=.*Received.*shape \(1, 3, 1\)"):
        model(np.zeros((1, 3), int))


def test_a_config_is_read_with_custom_objects():
    class Head(keras.layers.Dense):
        """Head that is not registered."""

    config = language_model(head=Head(3)).get_config()
    with pytest.raises(TypeError, match="Could not locate class 'Head'"):
        PerformerLM.from_config(config)
    model = PerformerLM.from_config(config, custom_objects={"Head": Head})
    assert isinstance(model.head, Head)
