"""The attention of Keras itself, with a sliding window."""

import keras
import tensorflow as tf

from benchmarks import tensorflow_programs
from benchmarks.peers import programs


def start(threads):
    return {**tensorflow_programs.start(threads), "keras": keras.__version__}


def program(case):
    keras.utils.set_random_seed(0)
    return programs.program(case, attention)


def attention(case, arrays):
    """`Side` of a layer of Keras."""
    options, sizes = dict(case["options"]), case["sizes"]
    heads, dim = sizes["num_heads"], sizes["key_dim"]
    call = {"use_causal_mask": options.pop("causal", False), "training": True}
    if case["layer"] == "GroupQueryAttention":
        groups = options.pop("num_key_value_heads")
        layer = keras.layers.GroupQueryAttention(dim, heads, groups, **options)
    else:
        layer = keras.layers.MultiHeadAttention(heads, dim, **options)
    shape = None, None, sizes["width"]
    layer.build(shape, shape)
    if arrays is not None:
        call |= {"key_mask": tf.constant(arrays["seen"])}
    return programs.Side(lambda x: layer(x, x, **call), lambda: programs.by_name(layer))
