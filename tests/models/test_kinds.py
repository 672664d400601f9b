"""Promises of all kinds of `PerformerLM`: blocks, states, causality and files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import generate
from tests.layers.inputs import in_pieces
from tests.models.kinds import CONTINUED, CONVOLUTION, KINDS, Pairs, Shifted, pairs
from tests.models.token_models import (
    IDS,
    assert_close,
    assert_likeliest,
    moved_by_token_4,
    reloaded,
    small_model,
)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_model_is_its_parts_and_is_saved_with_them(options):
    model = small_model(**options)
    x = model.embedding(IDS)
    if model.position_embedding == "learned":
        x += model.positions(np.arange(IDS.shape[1])[np.newaxis])
    for block in model.blocks:
        x = block(x)
    np.testing.assert_allclose(model(IDS), model.head(model.norm(x)), atol=1e-5)
    loaded = reloaded(model)
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert loaded.get_config() == model.get_config()
    assert [w.name for w in loaded.weights] == [w.name for w in model.weights]


TOLERANCES = {"float64": 1e-12, "float32": 1e-5}
TOLERANCES |= {"mixed_bfloat16": 6e-2, "mixed_float16": 1e-2}


@pytest.mark.parametrize("options", CONTINUED.values(), ids=CONTINUED)
def test_pieces_and_what_is_drawn_are_the_whole(options):
    model = small_model(**options)
    whole = model(IDS)
    found, state = in_pieces(model, IDS, 2, 3, 8)
    policy = model.dtype_policy.name
    assert_close(found, whole, TOLERANCES[policy])
    np.testing.assert_array_equal(state["position"], [11] * 4)
    # sums are not rounded to half precision
    dtype = tf.float64 if policy == "float64" else tf.float32
    parts = keras.tree.flatten_with_path(state)
    sums = [x for path, x in parts if "convolution" not in path and x.dtype.is_floating]
    assert {x.dtype for x in sums} <= {dtype}
    assert found.dtype == whole.dtype == dtype
    if TOLERANCES[policy] < 1e-4:
        model.head.kernel.assign(4 * model.head.kernel)
        drawn = generate(model, IDS[:, :3], 14, temperature=0)
        assert_likeliest(model, drawn, 3)


def test_an_embedding_remembers_inputs_and_tells_the_head():
    model = small_model(cls=pairs)
    found, state = in_pieces(model, IDS, 1, 5)
    assert_close(found, model(IDS))
    np.testing.assert_array_equal(state["embedding"], IDS[:, -1:])
    assert model.compute_output_shape((2, 3)) == (2, 3, 11)
    # `generate` samples from the head's `next_token_logits`
    drawn = generate(model, IDS[:, :3], 7, temperature=0)
    likeliest = model(drawn[:, :-1]).numpy().argmin(-1)
    np.testing.assert_array_equal(drawn[:, 3:], likeliest[:, 2:])
    loaded = reloaded(small_model(embedding=Pairs(), head=Shifted()))
    loaded.set_weights(model.get_weights())
    np.testing.assert_array_equal(loaded(IDS), model(IDS))


@pytest.mark.parametrize(
    "options, moved",
    [
        ({}, range(4, 11)),
        (dict(causal=False), range(11)),
        (dict(cls=pairs), range(4, 11)),
        (KINDS["gating and others"], range(4, 11)),
        (dict(attention="none"), [4]),
        # two tokens before, in two blocks
        (dict(attention="none", **CONVOLUTION), range(4, 9)),
        (dict(attention="none", causal=False, num_layers=1, **CONVOLUTION), [3, 4, 5]),
        (CONVOLUTION, range(4, 11)),
    ],
)
def test_a_token_moves_what_may_see_it(options, moved):
    assert moved_by_token_4(small_model(**options)) == list(moved)
