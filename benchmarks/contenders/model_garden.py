"""KernelAttention of tf-models-official 2.20, on TensorFlow 2.20.

Causal KernelAttention sees a window of chunks, and later tokens in the own chunk. Here
a chunk has 64 tokens and the window is the sequence.
"""

import numpy as np
import tensorflow as tf
from official.nlp.modeling.layers import kernel_attention

from benchmarks import contenders
from benchmarks.contenders import steps

CHUNK = 64


def start(threads):
    return steps.start(threads, "tf-models-official")


def program(case):
    tf.random.set_seed(0)
    length, chunks = case["length"], {}
    if case["form"] == "causal":
        chunks = {
            "use_causal_windowed": True,
            "causal_chunk_length": CHUNK,
            "causal_window_length": -(-length // CHUNK),
        }
    layer = kernel_attention.KernelAttention(
        num_heads=contenders.NUM_HEADS,
        key_dim=contenders.KEY_DIM,
        feature_transform=case["contender"].removeprefix("KernelAttention "),
        num_random_features=contenders.NUM_RANDOM_FEATURES,
        seed=0,
        **chunks,
    )
    x = np.random.default_rng(0).standard_normal((1, length, contenders.WIDTH))
    return steps.program(lambda x: layer(x, x), x)
