"""PerformerLM(conv_kernel_size=): training in chunks, states, generating, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, convert_to_performer, generate, testing
from tests.layers.inputs import language_model
from tests.models.token_models import IDS, TARGETS, loss_and_gradients, small_model


def model_with(recompute=None, **options):
    """Kernels larger than at first, so that tokens before count."""
    model = small_model(recompute, **{"conv_kernel_size": 3, **options})
    for index, block in enumerate(model.blocks):
        if block.convolution is not None:
            random = np.random.default_rng(index)
            kernel = block.convolution.kernel
            kernel.assign(random.standard_normal(kernel.shape))
    return model


def test_blocks_have_kernels_of_their_own_and_the_model_is_causal():
    model = model_with()
    assert [block.conv_kernel_size for block in model.blocks] == [3, 3]
    testing.check_causal(model, IDS)
    changed = IDS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    alone = model_with(attention="none")
    moved = np.abs(alone(changed) - alone(IDS)).max((0, 2)) > 1e-6
    assert np.flatnonzero(moved).tolist() == [4, 5, 6, 7, 8]  # two before, twice


def test_a_model_that_is_not_causal_sees_both_sides():
    changed = IDS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    model = model_with(attention="none", causal=False, num_layers=1)
    moved = np.abs(model(changed) - model(IDS)).max((0, 2)) > 1e-6
    assert np.flatnonzero(moved).tolist() == [3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recompute, length, size",
    [("block", 11, 7), ("network", 11, 2), ("network", 3, 7)],
)
def test_gradients_are_those_of_plain_training(recompute, length, size):
    """Chunks of 4 tokens: shorter than the kernel, too, and with a rest."""
    keras.config.set_floatx("float64")
    ids, targets = IDS[:, :length], TARGETS[:, :length]
    options = dict(conv_kernel_size=size, dtype="float64", feature_map="relu")
    results = loss_and_gradients(model_with(recompute, **options), ids, targets)
    expected = loss_and_gradients(model_with(**options), ids, targets)
    for result, wanted in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        limit = 1e-10 * max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(result, wanted, rtol=0, atol=limit)


def test_what_is_drawn_is_the_likeliest_of_the_whole():
    model = model_with()
    drawn = generate(model, IDS[:, :3], 14, temperature=0)
    likeliest = model(drawn[:, :-1]).numpy().argmax(-1)
    np.testing.assert_array_equal(drawn[:, 3:], likeliest[:, 2:])


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_pieces_are_the_whole(dtype):
    model = model_with(dtype=dtype)
    state, parts = model.get_initial_state(4), []
    for piece in (slice(0, 2), slice(2, 3), slice(3, 11)):
        part, state = model(IDS[:, piece], state=state, return_state=True)
        parts.append(part)
    whole = model(IDS)
    tolerance = 1e-5 if dtype == "float32" else 5e-2
    limit = tolerance * np.abs(whole).max()
    np.testing.assert_allclose(tf.concat(parts, 1), whole, atol=limit)


def test_files_and_configs(tmp_path):
    model = model_with()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    config = small_model().get_config()
    assert config.pop("conv_kernel_size") is None  # as one of before the argument
    assert PerformerLM.from_config(config).blocks[0].convolution is None


def test_a_converted_model_keeps_its_convolutions():
    model = model_with(attention="exact")
    converted, _ = convert_to_performer(model, exact_window=11)
    np.testing.assert_allclose(converted(IDS), model(IDS), atol=1e-4)


@pytest.mark.parametrize(
    "message, options",
    [
        ("conv_kernel_size must be a positive int", dict(conv_kernel_size=0)),
        ("convolution to both sides.*recompute=None", dict(recompute="block")),
        (
            "convolution to both sides.*recompute=None",
            dict(attention="none", recompute="block"),
        ),
    ],
)
def test_what_does_not_fit_is_refused(message, options):
    with pytest.raises(ValueError, match=message):
        language_model(num_layers=2, causal=False, **{"conv_kernel_size": 3, **options})
