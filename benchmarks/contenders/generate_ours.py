"""`generate` of a `PerformerLM`; a case is what `benchmarks/generation.py` makes."""

import keras
import numpy as np

import keras_performer
from benchmarks import contenders
from benchmarks.contenders import keras_layers

start = keras_layers.start


def program(case):
    keras.utils.set_random_seed(0)
    length = case["prompt_length"] + case["new_tokens"]
    model = keras_performer.PerformerLM(
        max_length=length,
        num_random_features=contenders.NUM_RANDOM_FEATURES,
        seed=0,
        **case["sizes"],
    )
    random = np.random.default_rng(0)
    shape = case["batch"], case["prompt_length"]
    prompt = random.integers(model.vocabulary_size, size=shape)

    def run():
        tokens = keras_performer.generate(
            model, prompt, length, temperature=0, verbose=0
        )
        assert tokens.shape == (case["batch"], length)

    return lambda: None, run
