"""Fixtures for tests of several examples."""

import pytest

import keras_performer


@pytest.fixture
def one_block(monkeypatch):
    """Models of the examples have one block, which TensorFlow traces in less time."""
    model = keras_performer.PerformerLM

    def smaller(vocabulary_size, **options):
        return model(vocabulary_size, **{**options, "num_layers": 1})

    monkeypatch.setattr(keras_performer, "PerformerLM", smaller)
