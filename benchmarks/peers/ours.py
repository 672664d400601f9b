"""Our layers."""

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks import tensorflow_programs
from benchmarks.peers import programs
from keras_performer import layers, zoo
from keras_performer.zoo.big_bird import NONE


def start(threads):
    versions = tensorflow_programs.start(threads)
    ours = {"keras_performer": keras_performer.__version__}
    return {**versions, "keras": keras.__version__, **ours}


def program(case):
    keras.utils.set_random_seed(0)
    mixes = case["layer"] == "FourierMixing"
    return programs.program(case, fourier_block if mixes else attention)


def attention(case, arrays):
    """`Side` of an attention layer."""
    layer = made(case)
    layer.build((None, None, case["sizes"]["width"]))
    call = {"training": True}  # as `fit` calls it; there is no dropout
    if arrays is not None:
        call |= given(layer, case, arrays)
    return programs.Side(lambda x: layer(x, **call), lambda: programs.by_name(layer))


def made(case):
    kinds, sizes = {**vars(layers), **vars(zoo)}, case["sizes"]
    kind = kinds[case["layer"]]
    return kind(sizes["num_heads"], sizes["key_dim"], **case["options"])


def given(layer, case, arrays):
    """Arguments of the call, once the layer has all but the dense weights."""
    call = {"query_mask": tf.constant(arrays["seen"])}
    if case["layer"] == "LongformerAttention" and layer.num_global_tokens:
        call["global_mask"] = tf.constant(arrays["global"])
    if "projection" in arrays:
        layer.projection_matrix.assign(arrays["projection"])
    if case["layer"] == "BigBirdAttention":
        theirs = np.load(case["theirs"])["random_blocks"]
        blocks = seen_blocks(theirs, case.get("each_once", False))
        layer.seen_blocks = lambda length, causal: blocks
    return call


def seen_blocks(random_blocks, each_once):
    """Our table of blocks with the random ones of the Model Garden.

    Args:
        random_blocks: int array `(heads, count - 2, random)`, of all but the first and
            last block.
        each_once: bool, whether a block that is seen anyway is left out.
    """
    heads, inner, number = random_blocks.shape
    table, all_seeing = zoo.big_bird_blocks(inner + 2, heads, 2, 0, seed=0)
    more = np.full((heads, inner + 2, number), NONE)
    more[:, 1:-1] = random_blocks
    if each_once:
        known = np.concatenate([table, more], -1)
        for i in range(number):
            at = table.shape[-1] + i
            again = (known[..., :at] == known[..., at : at + 1]).any(-1)
            more[again, i] = NONE
    return zoo.SeenBlocks(tf.concat([table, tf.cast(more, tf.int32)], -1), all_seeing)


def fourier_block(case, arrays):
    """`Side` of a block of FNet: what the paper has around the transform, by Keras."""
    width, inner = case["sizes"]["width"], case["options"]["intermediate_dim"]
    mixing = zoo.FourierMixing()
    norms = [
        keras.layers.LayerNormalization(epsilon=1e-5, name=name)
        for name in ("mixing_norm", "output_norm")
    ]
    expand = keras.layers.Dense(inner, activation="relu", name="expand")
    contract = keras.layers.Dense(width, name="contract")
    for layer in (mixing, *norms, expand):
        layer.build((None, None, width))
    contract.build((None, None, inner))
    mask = {}
    if arrays is not None and case.get("masked"):
        mask = {"mask": tf.constant(arrays["seen"])}

    def call(x):
        x = norms[0](x + mixing(x, **mask))
        return norms[1](x + contract(expand(x)))

    parts = *norms, expand, contract
    return programs.Side(call, lambda: programs.by_name(*parts))
