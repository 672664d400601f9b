"""What stands beside a converted model that recalls is what it is called."""

import numpy as np
import pytest

from benchmarks.conversion import recall
from benchmarks.conversion.recall import Result
from benchmarks.learning import models, rows
from keras_performer import convert_to_performer
from keras_performer.layers import ExactAttention


@pytest.mark.slow
def test_controls_are_what_they_are_called():
    exact = models.make_model(recall.TASK, rows.EXACT, recall.KEY_DIM, recall.SEED)
    tokens = recall.TASK.draw(np.random.default_rng(0), 1)[0]
    found = dict(recall.controls(exact))
    same, mean, window = (np.asarray(model(tokens)) for model in found.values())
    np.testing.assert_array_equal(same, exact(tokens))
    both, _ = convert_to_performer(
        exact,
        exact_window=recall.TASK.window,
        feature_map="taylor",
        num_random_features=None,
    )
    assert np.abs(both(tokens) - window).max() > 1e-3
    np.testing.assert_allclose(
        recall.without_far_keys(both)(tokens), window, rtol=1e-4, atol=1e-4
    )
    x = np.random.default_rng(1).normal(size=(1, 7, 64)).astype("float32")
    attention = found["mean of V"].blocks[0].attention
    assert isinstance(attention, ExactAttention)
    _, weights = attention(x, return_attention_scores=True)
    equal = np.tri(7) / np.arange(1, 8)[:, np.newaxis]
    np.testing.assert_allclose(weights[0], np.broadcast_to(equal, (4, 7, 7)), atol=1e-6)


def test_the_report_has_every_number(tmp_path):
    results = [
        Result(rows.EXACT, 0.99951, 0.0151),
        Result("window + taylor, transferred", 0.5, 2.0, 61.0, steps=200),
        Result("window + taylor, transferred", 0.9, 1.0, 30.0, 200, further_steps=40),
    ]
    lines = recall.page(results).splitlines()
    assert "| exact | 0 | 0 | 0.9995 | 0.015 | 0 |" in lines
    assert "| window + taylor, transferred | 200 | 40 | 0.9000 | 1.000 | 30 |" in lines
    recall.draw(results, tmp_path / "recall.png")
    assert (tmp_path / "recall.png").stat().st_size > 0
