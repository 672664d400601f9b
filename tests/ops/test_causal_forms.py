"""Rare chunks of causal attention are the right ones, and both forms agree."""

import numpy as np
import pytest

from keras_performer import ops
from tests.ops import reference

from .cases import (
    assert_all_close,
    attend_to_past,
    float64,
    normal,
    softmax_kernel,
    value_and_gradients,
)
from .test_trunk import Form


def attend(kernel, inputs, mask=None):
    return value_and_gradients(
        lambda *x: attend_to_past(*x, kernel, mask, chunk_size=8), inputs
    )


def exact(kernel, inputs, mask=None):
    """Computes outputs and gradients by the reference in float64."""
    given = kernel.astype("float64"), mask, True
    return value_and_gradients(
        lambda *x: reference.attention(*x, *given), float64(*inputs)
    )


def inputs(std=1.0):
    query, key = (normal((2, 96, 2, 16), (3, i), std, "float32") for i in range(2))
    return query, key, normal((2, 96, 2, 3), (3, 2), dtype="float32")


@pytest.mark.parametrize("std, padding", [(0.5, 0), (1.0, 1), (2.0, 0), (2.0, 40)])
def test_ordinary_and_left_padded_sequences_have_no_rare_chunk(forms, std, padding):
    mask = np.arange(96)[None] >= np.array([[padding], [0]])
    attend(softmax_kernel(32, 16), inputs(std), mask if padding else None)
    assert forms.chunks() == [0, 0, 0, 0]  # two blocks, forward and backward
    assert forms.log_pairs == 0


def test_the_chunk_whose_first_key_is_dwarfed_is_rare_and_no_other(forms):
    """Only one head of one example takes the slow form."""
    query, key, value = inputs()
    scale = np.ones((2, 96, 2, 1), "float32")
    scale[1, 16, 0] = 8
    key *= scale
    # hide earlier keys, whose sums would be larger
    mask = np.arange(96)[None] >= [[0], [16]]
    given = softmax_kernel(32, 16), (query, key, value), mask
    found = attend(*given)
    rare = np.zeros((4, 8), bool)
    rare[2, 2] = True
    np.testing.assert_array_equal(forms.rare[0], rare)
    assert forms.chunks() == [1, 0, 0, 1]
    assert forms.log_pairs == 2

    assert_all_close(found, exact(*given), 2e-5)


def test_large_queries_and_keys(forms):
    """Few chunks are rare with inputs as large as training may reach."""
    kernel = softmax_kernel(64, 16)
    given = [normal((1, 1024, 2, 16), i, std=8, dtype="float32") for i in range(3)]
    output, _ = ops.causal_attention(*given, kernel)
    assert 0 < sum(forms.chunks()) <= 8  # of 32, all of them in the first block
    assert not any(rare.any() for rare in forms.rare[1:])
    assert_all_close([output], exact(kernel, given)[:1], 1e-3)


def test_a_token_that_sees_only_keys_against_it(forms):
    """The largest features of query and key differ, by hundreds of nats."""
    query, key, value = inputs(std=16.0)
    output = attend(softmax_kernel(32, 16), [-4 * key, key, value])
    assert forms.log_pairs > 0
    np.testing.assert_allclose(output[0][:, 0], value[:, 0], rtol=1e-5)


@pytest.mark.parametrize("causal, std", [(True, 1.0), (True, 8.0), (False, 1.0)])
def test_a_segment_start_makes_no_chunk_rare(forms, causal, std):
    form = Form(causal, window=5, packed=True, chunk=8)
    value_and_gradients(form.ours(), form.inputs(std))
    if std == 1:
        assert sum(forms.chunks()) == 0 and forms.log_pairs == 0
    else:
        assert 0 < np.mean(np.concatenate(forms.rare)) < 0.5
