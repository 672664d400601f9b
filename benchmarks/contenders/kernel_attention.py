"""KernelAttention of tf-models-official 2.20, in an environment with TensorFlow 2.20.

Its causal form is windowed over chunks of 64 tokens; the window here is the sequence.
(It sees the future inside each chunk.)
"""

import importlib.metadata

import numpy as np
import tensorflow as tf
from official.nlp.modeling.layers import kernel_attention

from benchmarks import contenders, tensorflow_programs

CHUNK = 64


def start(threads):
    version = importlib.metadata.version("tf-models-official")
    return {**tensorflow_programs.start(threads), "tf-models-official": version}


def program(case):
    tf.random.set_seed(0)
    causal = {}
    if case["form"] == "causal":
        causal = {
            "use_causal_windowed": True,
            "causal_chunk_length": CHUNK,
            "causal_window_length": -(-case["length"] // CHUNK),
        }
    layer = kernel_attention.KernelAttention(
        num_heads=contenders.NUM_HEADS,
        key_dim=contenders.KEY_DIM,
        feature_transform=case["contender"].removeprefix("KernelAttention "),
        num_random_features=contenders.NUM_RANDOM_FEATURES,
        seed=0,
        **causal,
    )
    x = np.random.default_rng(0).standard_normal((1, case["length"], contenders.WIDTH))
    return tensorflow_programs.program(
        lambda x: layer(x, x), [tf.cast(x, tf.float32)], case
    )
