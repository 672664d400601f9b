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
    """Spares short trainings XLA, which takes longer than they do.

    The whole ImageNet64 example and the quickstart's full training keep what Keras
    chooses.
    """
    # where it is defined, as Keras does not load models that override it
    trainer = next(x for x in keras.Model.__mro__ if "compile" in vars(x))
    compile_model = trainer.compile

    def compile_for_graphs(self, *args, **options):
        compile_model(self, *args, **{"jit_compile": False, **options})

    monkeypatch.setattr(trainer, "compile", compile_for_graphs)
