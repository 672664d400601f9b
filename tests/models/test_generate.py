"""Functions that `generate` compiles for a model and reuses, and its errors."""

import functools
import gc
import logging
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, generate, generate_stream
from keras_performer.layers.embeddings import TokenEmbedding
from tests.models import token_models
from tests.models.token_models import assert_likeliest

VOCABULARY = 11
PROMPT = [[3, 1, 4, 1, 5]]


def small_model(**changes):
    options = dict(num_layers=1, max_length=40)
    if "attention" not in changes:  # its graphs are traced in less time
        options["feature_map"] = "relu"
    model = token_models.small_model(**{**options, **changes})
    # logits of a new model are nearly equal, so sampled tokens would tell little
    model.head.kernel.assign(4 * model.head.kernel)
    return model


def count_traces(monkeypatch):
    """Returns a list that gets an entry whenever sampling of a token is traced."""
    traces = []
    monkeypatch.setattr(
        PerformerLM,
        "next_token_logits",
        lambda self, outputs: traces.append(1) or outputs,
    )
    return traces


def test_many_options_bring_no_warning_about_tracing():
    # runs before other tests, as TensorFlow warns only twice about a function
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    model = small_model()
    for top_k in range(1, 6):
        generate(model, PROMPT, 6, top_k=top_k, seed=0)
    tf.get_logger().removeHandler(handler)
    assert not messages


def test_new_weights_lengths_and_temperatures_are_not_traced_again(monkeypatch):
    model = small_model()
    before = generate(model, PROMPT, 12, temperature=0)
    hot = generate(model, PROMPT, 12, temperature=3, seed=0)
    traces = count_traces(monkeypatch)
    model.head.kernel.assign(-model.head.kernel)
    for block in model.blocks:
        block.attention.redraw_features()
    after = generate(model, PROMPT, 25, temperature=0)
    cold = generate(model, PROMPT, 25, temperature=1e-30, seed=3)
    assert not traces
    assert_likeliest(model, after, 5)
    np.testing.assert_array_equal(cold, after)
    assert (before != after[:, :12]).any() and (before != hot).any()


def add_lora(model):
    model.head.enable_lora(2)
    values = 5 * np.random.default_rng(0).normal(size=(2, VOCABULARY))
    model.head.lora_kernel_a.assign(5 * np.ones((8, 2)) * np.arange(1, 9)[:, None])
    model.head.lora_kernel_b.assign(values)


def quantize(model):
    model.quantize("int8")
    # changes numbers by more than rounding
    model.head.kernel_scale.assign(-model.head.kernel_scale)


def lower_precision(model):
    model.head.dtype_policy = "bfloat16"


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize(
    "change",
    [add_lora, pytest.param(quantize, marks=pytest.mark.slow), lower_precision],
)
def test_a_changed_model_is_traced_again(change, monkeypatch):
    model = small_model()
    before = generate(model, PROMPT, 12, temperature=0)
    change(model)
    traces = count_traces(monkeypatch)
    after = generate(model, PROMPT, 12, temperature=0)
    assert_likeliest(model, after, 5)
    if change is not lower_precision:  # this only rounds logits
        assert (before != after).any()
    assert traces


def test_a_model_that_has_generated_can_be_freed():
    model = small_model()
    generate(model, PROMPT, 8, seed=0)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_progress_bar_is_shown_when_asked_for(capsys):
    model = small_model()
    generate(model, PROMPT, np.int64(9), seed=0, verbose=1)
    assert "4/4" in capsys.readouterr().out
    generate(model, PROMPT, 9, seed=0)
    assert not capsys.readouterr().out


# -- Errors, besides those in `tests/wrong_uses`.


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
        ("seed must", dict(seed="a")),
        ("temperature must", dict(temperature=None)),
        ("temperature must.*Received: temperature=1e-39", dict(temperature=1e-39)),
        ("top_k must", dict(top_k=0)),
        ("top_p must", dict(top_p=1.5)),
        ("top_p must.*Received: top_p=1e-46", dict(top_p=1e-46)),
        (r"min_p must.*Received: min_p=0$", dict(min_p=0)),
        ("repetition_penalty must", dict(repetition_penalty=0.0)),
        ("num_samples must", dict(num_samples=0)),
        ("stop_tokens must.*from 0 to 10", dict(stop_tokens=[3, VOCABULARY])),
        ("stop_tokens must", dict(stop_tokens="\n")),
        (r"prompt must be ints.*float", dict(prompt=[[1, 2], [1.0]])),
        (r"a list of sequences.*shapes \[\(\), \(1,\)\]", dict(prompt=[[1], 2])),
        ("a list of sequences", dict(prompt=[])),
        ("prompt of 9 tokens", dict(prompt=[[1], 9 * [2]])),
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


def test_a_stream_says_at_once_what_is_wrong():
    for name in ("chunk_size", "min_p", "prompt"):
        options = {"prompt": PROMPT, "max_length": 9, name: 0}
        with pytest.raises(ValueError, match=f"{name} must"):
            generate_stream(fresh_model(), **options)


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
