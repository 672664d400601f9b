"""`generate` says in clear errors what it cannot do."""

import functools
import types

import keras
import numpy as np
import pytest

from keras_performer import generate, generate_stream
from keras_performer.layers.embeddings import TokenEmbedding
from tests.models.test_generate import PROMPT, VOCABULARY, small_model


@functools.cache
def fresh_model():
    return small_model()


@pytest.mark.parametrize(
    "message, options",
    [
        ("prompt must", dict(prompt=[1, 2])),
        ("prompt must", dict(prompt=np.zeros((1, 0), "int32"))),
        ("prompt must be ints", dict(prompt=[[1.0, 2.0]])),
        (r"from 0 to 10.*prompt\[0, 1\] = 4294967299", dict(prompt=[[1, 2**32 + 3]])),
        (r"prompt\[1, 0\] = -1", dict(prompt=[[2, 1], [-1, 3]])),
        ("prompt must be ints", dict(prompt=[["a", "b"]])),
        ("seed must", dict(seed="a")),
        ("max_length must", dict(max_length=5)),
        ("max_length must", dict(max_length=42)),
        ("temperature must", dict(temperature=-1.0)),
        ("temperature must", dict(temperature=None)),
        ("temperature must.*Received: temperature=1e-39", dict(temperature=1e-39)),
        ("temperature must", dict(temperature=float("nan"))),
        ("top_k must", dict(top_k=0)),
        ("top_p must", dict(top_p=1.5)),
        ("top_p must.*Received: top_p=1e-46", dict(top_p=1e-46)),
        (r"min_p must.*Received: min_p=0$", dict(min_p=0)),
        ("min_p must", dict(min_p=1.1)),
        ("repetition_penalty must", dict(repetition_penalty=0.0)),
        ("repetition_penalty must", dict(repetition_penalty=None)),
        ("num_samples must", dict(num_samples=0)),
        ("num_samples must", dict(num_samples=1.0)),
        ("stop_tokens must.*from 0 to 10", dict(stop_tokens=[3, VOCABULARY])),
        ("stop_tokens must", dict(stop_tokens=-1)),
        ("stop_tokens must", dict(stop_tokens="\n")),
        ("stop_tokens must", dict(stop_tokens=2.0)),
        (r"at least one token in each.*prompt\[1\] of l", dict(prompt=[[1], []])),
        (r"prompt\[1, 1\] = 11", dict(prompt=[[1], [2, VOCABULARY]])),
        (r"prompt must be ints.*float", dict(prompt=[[1, 2], [1.0]])),
        (r"a list of sequences.*shapes \[\(\), \(1,\)\]", dict(prompt=[[1], 2])),
        ("a list of sequences", dict(prompt=[[1], [[1, 2], [3]]])),
        ("a list of sequences", dict(prompt=[])),
        ("encode text", dict(prompt="abc")),
        ("prompt of 9 tokens", dict(prompt=[[1], 9 * [2]])),
        ("at least one token", dict(prompt=b"")),
        ("from 0 to 10", dict(prompt=[b"\x01", b"abc"])),
        ("prompt must be ints", dict(prompt=[b"\x01", [1]])),
        ("verbose must", dict(verbose="loud")),
    ],
)
def test_bad_arguments_raise(message, options):
    with pytest.raises(ValueError, match=message):
        generate(fresh_model(), **{"prompt": PROMPT, "max_length": 9, **options})


def test_bytes_for_a_model_of_other_tokens_raise():
    model = small_model(vocabulary_size=257)
    with pytest.raises(ValueError, match="vocabulary_size=256 or less.*=257"):
        generate(model, b"abc", 9)


@pytest.mark.parametrize(
    "message, options",
    [
        ("chunk_size must", dict(chunk_size=0)),
        ("min_p must", dict(min_p=2)),
        ("prompt must", dict(prompt=[])),
    ],
)
def test_a_stream_says_at_once_what_is_wrong(message, options):
    with pytest.raises(ValueError, match=message):
        generate_stream(fresh_model(), **{"prompt": PROMPT, "max_length": 9, **options})


def test_other_models_raise():
    causal = types.SimpleNamespace(causal=True)
    for model in (keras.Sequential(), causal, None, small_model(causal=False)):
        with pytest.raises(ValueError, match="make the model with causal=True"):
            generate(model, PROMPT, 9)


class Negated(keras.layers.Layer):
    """Embedding that reads token i as -i."""

    def build(self, input_shape):
        self.table = TokenEmbedding(VOCABULARY, 8)
        self.table.build(input_shape)

    def call(self, inputs):
        return self.table(-inputs)


def test_a_model_with_inputs_of_its_own_may_read_other_ints():
    model = small_model(embedding=Negated())
    tokens = generate(model, [[-3, 0]], 3, temperature=0)
    likeliest = model(np.array([[-3, 0]]))[0, -1].numpy().argmax()
    assert tokens.tolist() == [[-3, 0, likeliest]]
    with pytest.raises(ValueError, match=r"prompt\[0, 0\] = -4294967299"):
        generate(model, [[-(2**32) - 3, 0]], 3)


@pytest.mark.parametrize(
    "value, options", [(float("nan"), dict(temperature=0)), (float("inf"), {})]
)
def test_logits_that_are_not_finite_raise(value, options):
    model = small_model()
    model.head.bias.assign(np.where(np.arange(VOCABULARY) == 6, value, 0))
    with pytest.raises(ValueError, match="logits are not finite"):
        generate(model, PROMPT, 9, **options)
