"""Big Bird and KernelAttention of tf-models-official 2.20, on TensorFlow 2.20.

Causal KernelAttention sees a window of chunks, and later tokens in the own chunk. When
it is timed, a chunk has 64 tokens and the window is the sequence.
"""

import functools

import numpy as np
import tensorflow as tf
from official.nlp.modeling.layers import bigbird_attention, kernel_attention

from benchmarks import contenders
from benchmarks.contenders import steps

STABILIZER = kernel_attention._NUMERIC_STABLER


def start(threads):
    return steps.start(threads, "tf-models-official")


def program(case):
    tf.random.set_seed(0)
    if "layer" in case:
        kernels = case["layer"] == "KernelAttention"
        return steps.of_side(case, kernel if kernels else big_bird)
    causal = case["form"] == "causal"
    layer = kernel_attention.KernelAttention(
        num_heads=contenders.NUM_HEADS,
        key_dim=contenders.KEY_DIM,
        feature_transform=case["contender"].removeprefix("KernelAttention "),
        num_random_features=contenders.NUM_RANDOM_FEATURES,
        seed=0,
        **(contenders.in_chunks(case["length"]) if causal else {}),
    )
    x = np.random.default_rng(0).standard_normal((1, case["length"], contenders.WIDTH))
    return steps.program(lambda x: layer(x, x), [tf.cast(x, tf.float32)], case)


def big_bird(case, arrays):
    """Returns the `Side` of Big Bird; `told` has its table of random blocks."""
    layer = bigbird_attention.BigBirdAttention(**heads(case), **case["options"])
    size = case["options"].get("from_block_size", 64)
    to_masks = bigbird_attention.BigBirdMasks(size)
    batch, length = case.get("batch", 1), case["length"]
    seen = tf.ones((batch, length), bool) if arrays is None else arrays["seen"]
    blocks = layer.rand_attn[:, : length // size - 2].numpy()

    def call(x):
        return layer(x, x, attention_mask=to_masks(x, tf.constant(seen)))

    weights = functools.partial(dense_weights, layer)
    return steps.Side(call, weights, {"random_blocks": blocks})


def kernel(case, arrays):
    """Returns the `Side` of KernelAttention with the given projection matrix."""
    kernel_attention._NUMERIC_STABLER = case.get("stabilizer", STABILIZER)
    layer = kernel_attention.KernelAttention(**heads(case), seed=0, **case["options"])
    call = {"training": True}
    if arrays is not None:
        layer._projection_matrix = tf.constant(arrays["projection"])
        call |= {"attention_mask": tf.constant(arrays["seen"], tf.float32)}
    return steps.Side(lambda x: layer(x, x, **call), lambda: dense_weights(layer))


def heads(case):
    return {name: case["sizes"][name] for name in ("num_heads", "key_dim")}


def dense_weights(layer):
    parts = {
        name: getattr(layer, f"_{name}_dense") for name in ("query", "key", "value")
    }
    return steps.of_dense({**parts, "attention_output": layer._output_dense})
