"""KerasHub: the FNet block, and `generate` of GPT-2 with a cache."""

import keras
import keras_hub
import numpy as np

from benchmarks.contenders import steps

# KerasHub's names of the layers in FNet, and ours.
PARTS = {
    "mixing_layer_norm": "mixing_norm",
    "output_layer_norm": "output_norm",
    "intermediate_dense": "expand",
    "output_dense": "contract",
}


def start(threads):
    return steps.start(threads, "keras", "keras-hub")


def program(case):
    keras.utils.set_random_seed(0)
    return steps.of_side(case, fourier) if "layer" in case else generating(case)


def fourier(case, arrays):
    """Returns the `Side` of a block, which takes no mask."""
    layer = keras_hub.layers.FNetEncoder(**case["options"])

    def weights():
        found = {}
        for name, x in steps.by_name(layer).items():
            part, weight = name.split("/")
            found[f"{PARTS[part]}/{weight}"] = x
        return found

    return steps.Side(lambda x: layer(x, training=True), weights)


def generating(case):
    """Makes `generate` with a cache for all tokens; KerasHub's default is "xla"."""
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

    return lambda: None, run
