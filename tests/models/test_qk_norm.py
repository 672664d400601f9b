"""PerformerLM(qk_norm=True): normalized queries and keys in every block."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.token_models import IDS, TARGETS, loss_and_gradients, small_model


def test_it_is_that_of_the_blocks():
    model = small_model(qk_norm=True)
    assert [block.attention.qk_norm for block in model.blocks] == [True, True]
    again = type(model).from_config(model.get_config())
    assert [block.attention.qk_norm for block in again.blocks] == [True, True]
    exact = small_model(qk_norm=True, attention="exact")
    assert [block.attention.qk_norm for block in exact.blocks] == [True, True]
    with pytest.raises(ValueError, match=r'options of attention="performer".*qk_norm'):
        small_model(qk_norm=True, attention="none")


@pytest.mark.slow
@pytest.mark.parametrize("recompute, exact_window", [("block", 3), ("network", None)])
def test_chunks_that_are_computed_again_give_the_same_gradients(
    recompute, exact_window
):
    options = dict(qk_norm=True, num_layers=1, exact_window=exact_window)
    plain, again = (small_model(r, **options) for r in (None, recompute))
    for block in plain.blocks:
        block.attention.query_key_norm.log_scale.assign([0.5, 1.5])
    again.set_weights(plain.get_weights())
    results = loss_and_gradients(again, IDS, TARGETS)
    expected = loss_and_gradients(plain, IDS, TARGETS)
    index = [w.name for w in plain.trainable_weights].index("log_scale")
    assert np.abs(expected[1][index]).min() > 1e-6
    for got, right in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        np.testing.assert_allclose(got, right, atol=1e-5)
