"""Tasks sample batches, and every row of their tables makes a model."""

import dataclasses

import numpy as np
import pytest

from benchmarks.learning import __main__ as learning
from benchmarks.learning import models, published, tasks
from benchmarks.long_range import __main__ as long_range


def test_tasks_sample_tokens_of_their_vocabulary():
    for task in (*learning.core(), *learning.further(), *long_range.core()):
        x, y, w = task.draw(np.random.default_rng(0), 2)
        assert x.shape == (2, task.length) and x.max() < task.vocabulary_size
        assert y.shape == w.shape == ((2, 1) if task.num_classes else x.shape)
        assert y.max() < (task.num_classes or task.vocabulary_size) and w.any()


@pytest.mark.slow
def test_rows_are_of_one_size_and_what_they_are_called():
    options = dict(window=4, steps=3, batch_size=2, learning_rate=1e-3)
    task = tasks.recall(64, 8, **options)
    sizes = {
        row: models.count_parameters(models.make_model(task, row, 16, seed=0))
        for row in (models.EXACT, models.WINDOW, models.WITHOUT)
    }
    assert sizes[models.EXACT] == sizes[models.WINDOW]
    assert abs(sizes[models.WITHOUT] / sizes[models.EXACT] - 1) < 0.002
    model = models.make_model(task, "window + softmax, high gain, exact last", 16, 0)
    first, last = (block.attention for block in model.blocks)
    np.testing.assert_allclose(first.log_gain.numpy(), 2.0, rtol=1e-6)
    assert type(last).__name__ == "ExactAttention"
    options = dict(steps=2, batch_size=4, learning_rate=1e-3, has_reader=True)
    long_task, kinds, exact = tasks.digits_anywhere(8, **options), set(), None
    causal = dataclasses.replace(long_task, num_classes=None)
    for row in long_range.ROWS:
        model = models.make_model(long_task, row, 16, seed=0)
        size = models.count_parameters(model)
        exact = exact or size
        assert abs(size / exact - 1) < 0.02, row
        if row in published.NOT_CAUSAL:
            with pytest.raises(ValueError, match="causal"):
                models.attention_of(row, causal, 16)
        layer = model.encoder.blocks[0].attention
        config = layer.get_config() if row != models.WITHOUT else {}
        kinds.add((type(layer).__name__, str(config | {"name": None})))
    assert len(kinds) == len(long_range.ROWS)
