"""What tests of several examples need."""

import keras
import pytest

import keras_performer


@pytest.fixture
def one_block(monkeypatch):
    """Models of the examples have one block, which TensorFlow traces in less time."""
    model = keras_performer.PerformerLM

    def smaller(**options):
        return model(**{**options, "num_layers": 1})

    monkeypatch.setattr(keras_performer, "PerformerLM", smaller)


@pytest.fixture
def uncompiled(monkeypatch):
    """Spares short trainings XLA, which takes longer than they do."""
    _compile_with(monkeypatch, jit_compile=False)


@pytest.fixture
def eagerly(monkeypatch):
    """Trains without graphs: two steps are made before one is traced."""
    _compile_with(monkeypatch, jit_compile=False, run_eagerly=True)


def _compile_with(monkeypatch, **given):
    # where it is defined, as Keras does not load models that override it
    trainer = next(x for x in keras.Model.__mro__ if "compile" in vars(x))
    compile_model = trainer.compile

    def compile_otherwise(self, *args, **options):
        compile_model(self, *args, **{**given, **options})

    monkeypatch.setattr(trainer, "compile", compile_otherwise)
