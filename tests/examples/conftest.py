"""Fixtures for tests of several examples."""

import numpy as np
import pytest
from PIL import Image

import keras_performer


@pytest.fixture
def one_block(monkeypatch):
    """Gives models of examples one block, which TensorFlow traces in less time."""
    model = keras_performer.PerformerLM

    def smaller(vocabulary_size, **options):
        return model(vocabulary_size, **{**options, "num_layers": 1})

    monkeypatch.setattr(keras_performer, "PerformerLM", smaller)


@pytest.fixture
def assert_drawn():
    """Returns a check that a file is a picture with something on it."""

    def check(path):
        picture = np.asarray(Image.open(path).convert("RGB"))
        assert min(picture.shape[:2]) > 150 and picture.std() > 5

    return check
