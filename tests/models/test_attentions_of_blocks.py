"""PerformerLM(attention=[...]): another attention in each block."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, generate
from keras_performer.layers import ExactAttention, LocalAttention
from tests.layers.inputs import language_model
from tests.models.token_models import IDS, MODES, loss_and_gradients, small_model


def local(**options):
    return LocalAttention(2, 4, sliding_window=3, causal=True, **options)


def with_each(*attention, **options):
    return small_model(attention=list(attention), num_layers=len(attention), **options)


def by_hand(model):
    """Output of the blocks of a model for `IDS`, called one after another."""
    x, extra, _ = model.embed(IDS)
    for block in model.blocks:
        if block.attention is not None:
            x = x + block.attention(block.attention_norm(x))
        x = block.feed_forward(x)
    return model.read_out(x, extra)


def test_each_block_has_its_own():
    model = with_each("performer", local(rotary=True), "none", "exact")
    first, second, third, fourth = (block.attention for block in model.blocks)
    assert type(first) is PerformerAttention and first.num_random_features == 6
    assert type(second) is LocalAttention and second.sliding_window == 3
    assert third is None and type(fourth) is ExactAttention
    assert all(one.rotary and one.causal for one in (first, second, fourth))
    np.testing.assert_allclose(model(IDS), by_hand(model), atol=1e-5)


def test_a_list_of_one_kind_is_that_kind():
    model, named = with_each("performer", "performer"), small_model()
    for one, other in zip(model.weights, named.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model(IDS), named(IDS))


def test_positions_are_what_all_can():
    rotary = with_each("none", "exact", "performer")
    assert rotary.position_embedding == "rotary"
    model = with_each("none", local(), "exact")
    assert [block.attention.rotary for block in model.blocks[1:]] == [True, True]
    odd = ExactAttention(2, 3, causal=True)
    for others in (("none", "none"), ("exact", odd)):
        assert with_each(*others).position_embedding == "learned"
    with pytest.raises(ValueError, match="rotary needs a key_dim divisible by 2"):
        with_each("exact", odd, position_embedding="rotary")


def test_a_model_is_saved_with_the_attention_of_each_block(tmp_path):
    model = with_each(local(rotary=True), "performer", "none")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert loaded.get_config() == model.get_config()


@pytest.mark.parametrize("recompute", MODES)
def test_blocks_differ_in_recomputed_chunks_too(recompute):
    attention = local(rotary=True), "none", "performer"
    results = loss_and_gradients(with_each(*attention, recompute=recompute))
    expected = loss_and_gradients(with_each(*attention))
    for result, wanted in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)


def test_a_sequence_is_continued():
    model = with_each(local(rotary=True), "none", "performer")
    drawn = generate(model, IDS[:, :3], 9, temperature=0)
    likeliest = model(drawn[:, :-1]).numpy().argmax(-1)
    np.testing.assert_array_equal(drawn[:, 3:], likeliest[:, 2:])


@pytest.mark.parametrize(
    "message, options",
    [
        ("one entry for each block.*with 1 entries", dict(attention=["exact"])),
        ("or a list of these", dict(attention=["exact", "softmax"])),
        ("or a list of these", dict(attention=["exact", None])),
        (
            "num_heads of the layer",
            dict(attention=["exact", ExactAttention(4, 2)]),
        ),
        (
            "chunk_size is an option of PerformerAttention",
            dict(attention=["exact", "none"], chunk_size=8),
        ),
        ("needs a state", dict(attention=["none", "exact"], recompute="block")),
    ],
)
def test_what_does_not_fit_is_refused(message, options):
    with pytest.raises(ValueError, match=message):
        language_model(num_layers=2, **options)


def test_no_state_if_one_block_has_none():
    model = with_each("performer", "exact")
    with pytest.raises(ValueError, match="generate needs an attention with a state"):
        generate(model, IDS[:, :3], 9)
