"""Big Bird and KernelAttention of tf-models-official 2.20, on TensorFlow 2.20."""

import functools
import importlib.metadata

import tensorflow as tf
from official.nlp.modeling.layers import bigbird_attention, kernel_attention

from benchmarks import tensorflow_programs
from benchmarks.peers import programs

STABILIZER = kernel_attention._NUMERIC_STABLER


def start(threads):
    version = importlib.metadata.version("tf-models-official")
    return {**tensorflow_programs.start(threads), "tf-models-official": version}


def program(case):
    tf.random.set_seed(0)
    kernels = case["layer"] == "KernelAttention"
    return programs.program(case, kernel if kernels else big_bird)


def big_bird(case, arrays):
    """`Side` of Big Bird, which tells its table of random blocks."""
    layer = bigbird_attention.BigBirdAttention(**heads(case), **case["options"])
    size = case["options"].get("from_block_size", 64)
    to_masks = bigbird_attention.BigBirdMasks(size)
    batch, length = case.get("batch", 1), case["length"]
    seen = tf.ones((batch, length), bool) if arrays is None else arrays["seen"]
    blocks = layer.rand_attn[:, : length // size - 2].numpy()

    def call(x):
        return layer(x, x, attention_mask=to_masks(x, tf.constant(seen)))

    weights = functools.partial(dense_weights, layer)
    return programs.Side(call, weights, {"random_blocks": blocks})


def kernel(case, arrays):
    """`Side` of KernelAttention; its matrix becomes the one that is given."""
    kernel_attention._NUMERIC_STABLER = case.get("stabilizer", STABILIZER)
    layer = kernel_attention.KernelAttention(**heads(case), seed=0, **case["options"])
    call = {"training": True}
    if arrays is not None:
        layer._projection_matrix = tf.constant(arrays["projection"])
        call |= {"attention_mask": tf.constant(arrays["seen"], tf.float32)}
    return programs.Side(lambda x: layer(x, x, **call), lambda: dense_weights(layer))


def heads(case):
    return {name: case["sizes"][name] for name in ("num_heads", "key_dim")}


def dense_weights(layer):
    parts = {
        name: getattr(layer, f"_{name}_dense") for name in ("query", "key", "value")
    }
    return programs.of_dense({**parts, "attention_output": layer._output_dense})
