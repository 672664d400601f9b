"""The token-by-token form of a block: when it is used, and that both forms agree."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops.linear import causal_tokens

from .cases import assert_all_close, normal, softmax_kernel, value_and_gradients


def attend(kernel, inputs, mask=None):
    def attention(query, key, value):
        return ops.causal_attention(query, key, value, kernel, mask, chunk_size=8)[0]

    return value_and_gradients(attention, inputs)


def inputs(std=1.0, length=96):
    query, key = (normal((2, length, 2, 16), (3, i), std, "float32") for i in range(2))
    return query, key, normal((2, length, 2, 3), (3, 2), dtype="float32")


@pytest.fixture
def calls(monkeypatch):
    """Counts the blocks that take the sequential form; eager, only one form runs."""
    counts = {"forward": 0, "backward": 0}

    def counting(name):
        function = getattr(causal_tokens, name)

        def counted(*args):
            counts[name] += 1
            return function(*args)

        monkeypatch.setattr(causal_tokens, name, counted)

    counting("forward")
    counting("backward")
    return counts


@pytest.mark.parametrize("padding", [0, 1, 40])
@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_ordinary_and_left_padded_sequences_never_need_it(calls, std, padding):
    mask = np.arange(96)[None] >= np.array([[padding], [0]])
    attend(softmax_kernel(32, 16), inputs(std), mask if padding else None)
    assert calls == {"forward": 0, "backward": 0}


def test_a_block_whose_first_key_is_dwarfed_needs_it_and_no_other_block(calls):
    query, key, value = inputs()
    scale = np.where(np.arange(96) == 0, 8.0, 1.0)
    key *= tf.constant(scale[:, None, None], "float32")
    attend(softmax_kernel(32, 16), (query, key, value))
    assert calls == {"forward": 1, "backward": 1}


def test_both_forms_agree(monkeypatch):
    kernel, mask = softmax_kernel(32, 16), np.arange(96)[None] % 7 > 2
    mask = np.concatenate([mask, mask[:, ::-1]])
    by_chunks = attend(kernel, inputs(), mask)
    monkeypatch.setattr(ops.ExponentialKernel, "max_rise", -1.0)
    token_by_token = attend(kernel, inputs(), mask)
    assert_all_close(token_by_token, by_chunks, 3e-6)
    different = [a != b for a, b in zip(by_chunks, token_by_token, strict=True)]
    assert any(np.any(x) for x in different)  # two forms, not one
