"""KernelAttention of tf-models-official 2.20, in an environment with TensorFlow 2.20.

Its causal form is windowed over chunks of 64 tokens; the window here is the sequence.
(It sees the future inside each chunk.)
"""

import importlib.metadata

import numpy as np
import tensorflow as tf
from official.nlp.modeling.layers import kernel_attention

from benchmarks import contenders, tensorflow_programs


def start(threads):
    version = importlib.metadata.version("tf-models-official")
    return {**tensorflow_programs.start(threads), "tf-models-official": version}


def program(case):
    tf.random.set_seed(0)
    is_causal = case["form"] == "causal"
    causal = contenders.in_chunks(case["length"]) if is_causal else {}
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


def attend(case):
    """The layer with identities for dense layers: it has no attention by itself."""
    with np.load(case["inputs"]) as arrays:
        query, key, value = (
            tf.constant(arrays[name][None], tf.float32)
            for name in ("query", "key", "value")
        )
    dim = query.shape[-1]
    layer = kernel_attention.KernelAttention(
        num_heads=1,
        key_dim=dim,
        use_bias=False,
        feature_transform=case["contender"].removeprefix("KernelAttention "),
        num_random_features=case["features"],
        seed=case["seed"],
    )
    layer(query[:, :1], value[:, :1], key[:, :1])  # builds it
    layer.set_weights([np.eye(dim).reshape(w.shape) for w in layer.get_weights()])
    np.save(case["output"], layer(query, value, key)[0].numpy())
