"""KerasHub: `generate` of GPT-2 with a cache."""

import keras
import keras_hub
import numpy as np

from benchmarks.contenders import steps


def start(threads):
    return steps.start(threads, "keras", "keras-hub")


def program(case):
    """Makes `generate` with a cache for all tokens; KerasHub's default is "xla"."""
    keras.utils.set_random_seed(0)
    length = case["prompt_length"] + case["new_tokens"]
    backbone = keras_hub.models.GPT2Backbone(
        **case["sizes"], dropout=0.0, max_sequence_length=length
    )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy", jit_compile=case["mode"] == "xla")
    tokens = np.zeros((case["batch"], length), "int32")
    random = np.random.default_rng(0)
    shape = case["batch"], case["prompt_length"]
    tokens[:, : shape[1]] = random.integers(backbone.vocabulary_size, size=shape)
    is_prompt = np.zeros(tokens.shape, bool)
    is_prompt[:, : shape[1]] = True
    inputs = {"token_ids": tokens, "padding_mask": is_prompt}

    def run():
        made = model.generate(inputs, stop_token_ids=None)
        assert made["token_ids"].shape == tokens.shape

    return run
