"""PerformerLM(attention=): mixers in its blocks."""

import keras
import numpy as np
import pytest

from keras_performer import PerformerAttention, generate
from keras_performer.zoo import FourierMixing, SpatialGatingUnit, TokenMixing
from tests.layers.inputs import language_model
from tests.models.token_models import IDS, loss_and_gradients, small_model

MIXERS = [
    FourierMixing("ortho"),
    TokenMixing(16, 6),
    SpatialGatingUnit(16, 6),
    SpatialGatingUnit(16, 6, causal=True),
]


def model_with(attention, **options):
    causal = getattr(attention, "causal", False)
    return small_model(attention=attention, **{"causal": causal, **options})


@pytest.mark.parametrize("mixer", MIXERS)
def test_each_block_has_a_copy_which_trains_and_is_saved(mixer, tmp_path):
    model = model_with(mixer)
    assert model.position_embedding == "learned"
    for block in model.blocks:
        assert type(block.attention) is type(mixer)
        assert block.attention is not mixer and block.attention.name == "attention"
    x, extra, _ = model.embed(IDS)
    for block in model.blocks:
        x = block.feed_forward(x + block.attention(block.attention_norm(x)))
    np.testing.assert_allclose(model(IDS), model.read_out(x, extra), atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert loaded.get_config() == model.get_config()
    loss, gradients = loss_and_gradients(model)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)
    model.optimizer.apply(gradients, model.trainable_weights)
    assert loss_and_gradients(model)[0] < loss


def test_blocks_may_differ():
    gating = SpatialGatingUnit(16, 6, causal=True)
    model = small_model(attention=["performer", gating, "none"], num_layers=3)
    kinds = [type(block.attention) for block in model.blocks]
    assert kinds == [PerformerAttention, SpatialGatingUnit, type(None)]
    assert model.position_embedding == "learned"
    changed = IDS.copy()
    changed[:, 6:] = (changed[:, 6:] + 3) % 11
    np.testing.assert_allclose(model(changed)[:, :6], model(IDS)[:, :6], atol=1e-6)


def test_with_rotary_no_positions_are_added():
    gating = SpatialGatingUnit(16, 6, causal=True)
    alone = model_with(gating, position_embedding="rotary")
    assert alone.positions is None
    both = small_model(attention=["performer", gating], position_embedding="rotary")
    assert both.positions is None and both.blocks[0].attention.rotary


def test_the_dtype_is_that_of_the_model():
    model = model_with(TokenMixing(16, 6, name="mine"), dtype="float64")
    mixer = model.blocks[0].attention
    assert (mixer.compute_dtype, mixer.name) == ("float64", "attention")


@pytest.mark.parametrize(
    "message, options",
    [
        ("the causal of the .*attention with causal=False", dict(causal=True)),
        ("attention needs `absorb`.*TokenMixing", dict(recompute="block")),
        ("a MixingLayer, or a list", dict(attention="fourier")),
        (": chunk_size. Leave", dict(chunk_size=8)),
    ],
)
def test_what_does_not_fit_is_refused(message, options):
    defaults = dict(attention=TokenMixing(16, 6), causal=False)
    with pytest.raises(ValueError, match=message):
        language_model(num_layers=2, **{**defaults, **options})


@pytest.mark.parametrize("recompute", ["block", "network"])
def test_nothing_goes_in_chunks_or_token_by_token(recompute):
    gating = SpatialGatingUnit(16, 6, causal=True)
    with pytest.raises(ValueError, match="needs a state.*SpatialGatingUnit"):
        language_model(num_layers=2, attention=gating, recompute=recompute)
    model = model_with(gating)
    message = "generate needs an attention with a state.*SpatialGatingUnit"
    with pytest.raises(ValueError, match=message):
        generate(model, IDS[:, :3], 9)
    with pytest.raises(ValueError, match="SpatialGatingUnit has no state"):
        model.get_initial_state(2)


def test_sequences_beyond_the_mixer_are_refused():
    model = model_with(TokenMixing(8, 6))
    with pytest.raises(ValueError, match="longer than max_length=8, of 11 tokens"):
        model(IDS)
