"""Work and memory of each layer grow with the length as its `cost` says."""

import pytest
import tensorflow as tf

from keras_performer import layers, zoo
from keras_performer.ops import blocks
from tests.cases import exported
from tests.costs import Work

SHORT, LONG = 256, 1024
# Smallest and largest ratio of the work for LONG to the work for SHORT.
GROWS = {
    "L": (3.8, 4.3),
    "L log L": (3.8, 5.0),  # 4 times 11 / 9 for sorting, 4 for the rest
    "L^2 / block_size + L block_size": (5.0, 16.1),
    "L^2": (10.0, 16.1),
}
SIZES = {"num_heads": 2, "key_dim": 16}
NEAR = {**SIZES, "sliding_window": 16}
BOUNDED = {**SIZES, "max_length": LONG}
# All kinds of attention and mixing; add new ones here.
MADE = {
    layers.PerformerAttention: SIZES,
    layers.ExactAttention: SIZES,
    layers.LocalAttention: NEAR,
    layers.LinearTransformerAttention: SIZES,
    zoo.LongformerAttention: {**NEAR, "num_global_tokens": 2},
    zoo.BigBirdAttention: {**SIZES, "block_size": 8},
    zoo.LinformerAttention: {**BOUNDED, "projection_dim": 16},
    zoo.ReformerAttention: {**NEAR, "num_hashes": 2, "num_buckets": 16},
    zoo.SinkhornAttention: {**BOUNDED, "block_size": 16},
    zoo.SynthesizerAttention: BOUNDED,
    zoo.FourierMixing: {},
    zoo.TokenMixing: {"max_length": LONG, "intermediate_dim": 16},
    zoo.SpatialGatingUnit: {"max_length": LONG, "intermediate_dim": 32},
}
CAUSAL = {"causal": True}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    """Makes blocks small, as a sequence of one block takes less work."""
    monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(max_tokens=64))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, {}) for kind in MADE),
        (layers.PerformerAttention, {"exact_window": 16}),
        # causal attention of these has its own loops; in others it is a mask
        (layers.PerformerAttention, CAUSAL),
        (layers.PerformerAttention, {"exact_window": 16, **CAUSAL}),
        (layers.LinearTransformerAttention, CAUSAL),
    ],
)
def test_a_step_of_training(kind, more):
    layer = kind(**MADE[kind], **more)
    if hasattr(layer, "jit_compile"):
        layer.jit_compile = False  # so that operations run one by one
    layer.build((1, LONG, 32))
    short, long = (Work(step, layer, length) for length in (SHORT, LONG))
    least, most = GROWS[layer.cost]
    assert least <= long.numbers / short.numbers <= most
    # the largest tensor does not grow faster
    assert long.largest / short.largest <= most


def test_all_layers_are_there():
    assert exported(layers.AttentionLayer, layers.MixingLayer) == set(MADE)


def step(layer, length):
    x = tf.random.stateless_normal((1, length, 32), (0, 1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.square(layer(x)))
    tape.gradient(loss, [x, *(weight.value for weight in layer.trainable_weights)])
