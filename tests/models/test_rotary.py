"""PerformerLM(position_embedding="rotary"): positions in the attention of blocks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, generate
from keras_performer.layers import ExactAttention, LocalAttention, PerformerBlock
from tests.layers.inputs import normal
from tests.models.token_models import IDS, TARGETS, loss_and_gradients, small_model

OPTIONS = dict(position_embedding="rotary")


def test_it_is_the_blocks_with_rotary_and_nothing_else():
    model = small_model(**OPTIONS)
    assert [w.path for w in model.weights if "positions" in w.path] == []
    x = model.embedding(IDS)
    for block in model.blocks:
        assert block.attention.rotary is True
        x = block(x)
    expected = model.head(model.norm(x))
    np.testing.assert_allclose(model(IDS), expected, atol=1e-6)


def test_a_grid_is_that_of_position_shape():
    options = dict(OPTIONS, position_shape=(8, 2))
    model = small_model(**options)
    assert {block.attention.rotary for block in model.blocks} == {(8, 2)}
    line = small_model(**OPTIONS)
    line.set_weights(model.get_weights())
    assert np.abs(line(IDS) - model(IDS)).max() > 1e-4


def test_the_default_is_what_the_attention_can():
    rotary = ExactAttention(2, 4, causal=True, rotary=True)
    grid = LocalAttention(2, 4, sliding_window=3, causal=True, rotary=(8, 2))
    plain = ExactAttention(2, 4, causal=True)
    for expected, options in (
        ("rotary", {}),
        ("rotary", dict(attention="exact")),
        ("rotary", dict(attention=rotary)),
        ("rotary", dict(attention=keras.saving.serialize_keras_object(rotary))),
        ("rotary", dict(attention=grid, position_shape=(8, 2))),
        ("rotary", dict(attention=plain)),
        ("learned", dict(attention=plain, position_shape=(8, 2))),
        ("learned", dict(attention=ExactAttention(2, 3, causal=True))),
        ("learned", dict(attention="none")),
        ("learned", dict(position_shape=(8, 2))),
        ("learned", dict(num_heads=2, hidden_dim=6)),
    ):
        options = dict(options, num_layers=1)
        model = small_model(**options)
        given = small_model(**options, position_embedding=expected)
        assert model.position_embedding == expected
        copy = PerformerLM.from_config(model.get_config())
        assert copy.get_config() == {**given.get_config(), "name": model.name}


@pytest.mark.slow
def test_steps_and_generation_give_the_whole():
    model = small_model(**OPTIONS, position_shape=(8, 2), num_layers=1)
    model.head.kernel.assign(4 * model.head.kernel)
    whole = model(IDS)
    first, state = model(IDS[:, :6], return_state=True)
    later, _ = model(IDS[:, 6:], state=state, return_state=True)
    np.testing.assert_allclose(tf.concat([first, later], 1), whole, atol=1e-5)
    drawn = generate(model, IDS[:, :3], 10, temperature=0)
    likeliest = model(drawn[:, :-1]).numpy().argmax(-1)[:, 2:]
    np.testing.assert_array_equal(drawn[:, 3:], likeliest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recompute", "options"),
    [
        ("block", dict(causal=True)),
        ("network", dict(causal=True, exact_window=3)),
        ("block", dict(causal=False, exact_window=3)),
    ],
)
def test_chunks_that_are_computed_again_are_where_they_were(recompute, options):
    """Also from the last to the first, and in the second of two passes."""
    options = dict(OPTIONS, num_layers=1, position_shape=(8, 2), **options)
    plain, again = (small_model(r, **options) for r in (None, recompute))
    again.set_weights(plain.get_weights())
    results = loss_and_gradients(again, IDS, TARGETS)
    expected = loss_and_gradients(plain, IDS, TARGETS)
    for got, right in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        np.testing.assert_allclose(got, right, atol=1e-5)


def test_chunks_of_a_call_with_a_mask():
    options = dict(OPTIONS, causal=False, num_layers=1)
    plain, again = (small_model(r, **options) for r in (None, "block"))
    again.set_weights(plain.get_weights())
    mask = np.arange(11) >= [[0], [4], [2], [7]]
    expected = plain(IDS, mask=mask, training=True)
    output = again(IDS, mask=mask, training=True)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_other_attentions():
    options = dict(OPTIONS)
    exact = small_model(attention="exact", **options)
    assert exact.blocks[0].attention.rotary is True
    template = LocalAttention(2, 4, sliding_window=3, causal=True, rotary=True)
    local = small_model(attention=template, **options)
    assert [block.attention.rotary for block in local.blocks] == [True, True]
    plain = small_model(attention=ExactAttention(2, 4, causal=True), **options)
    assert [block.attention.rotary for block in plain.blocks] == [True, True]
    options["position_embedding"] = "learned"
    with pytest.raises(ValueError, match='"learned" one with none'):
        small_model(attention=template, **options)


def test_without_attention_nothing_knows_the_position():
    options = dict(OPTIONS)
    control = small_model(attention="none", **options)
    outputs = control(np.full((1, 9), 3)).numpy()
    np.testing.assert_allclose(outputs, outputs[:, :1].repeat(9, 1), atol=1e-5)


def test_what_cannot_be_raises():
    with pytest.raises(ValueError, match='must be "learned" or "rotary". Received: '):
        small_model(position_embedding="sinusoidal")
    with pytest.raises(ValueError, match="rotary needs a key_dim divisible"):
        small_model(hidden_dim=6, **OPTIONS)


def test_a_block_hands_positions_on():
    block = PerformerBlock(ExactAttention(2, 4, rotary=True), 8)
    x, positions = normal((2, 5, 8)), np.array([[4, 1, 7, 2, 9]])
    output = block(x, positions=positions)
    order = np.argsort(positions[0])
    expected = block(x[:, order], positions=positions[:, order])
    np.testing.assert_allclose(output.numpy()[:, order], expected, atol=1e-5)
    assert np.abs(output - block(x)).max() > 1e-3
    with pytest.raises(ValueError, match="a block without attention"):
        PerformerBlock(None, 8)(x, positions=positions)
