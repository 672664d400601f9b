"""Functions that `generate` compiles for a model and reuses."""

import gc
import logging
import weakref

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, generate
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
