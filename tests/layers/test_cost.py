"""Each layer's work and memory grow with the length as its attribute `cost` says."""

import inspect

import pytest
import tensorflow as tf

import keras_performer
from keras_performer import layers, zoo
from keras_performer.layers.mixing import MixingLayer
from keras_performer.ops import blocks
from tests.costs import Work

SHORT, LONG = 256, 1024
# From the short to the long: how many times as much, at least and at most.
GROWS = {
    "L": (3.8, 4.3),
    "L log L": (3.8, 5.0),  # 4 times 11 / 9, and the rest in proportion
    "L^2 / block_size + L block_size": (5.0, 16.1),
    "L^2": (10.0, 16.1),
}
SIZES = {"num_heads": 2, "key_dim": 16}
NEAR = {**SIZES, "sliding_window": 16}
ATTENTION = {
    "performer": lambda **more: keras_performer.PerformerAttention(**SIZES, **more),
    "performer with a window": lambda **more: keras_performer.PerformerAttention(
        **SIZES, exact_window=16, **more
    ),
    "exact": lambda **more: layers.ExactAttention(**SIZES, **more),
    "local": lambda **more: layers.LocalAttention(**NEAR, **more),
    "linear": lambda **more: layers.LinearTransformerAttention(**SIZES, **more),
    "longformer": lambda **more: zoo.LongformerAttention(
        **NEAR, num_global_tokens=2, **more
    ),
    "big bird": lambda **more: zoo.BigBirdAttention(**SIZES, block_size=8, **more),
    "linformer": lambda **more: zoo.LinformerAttention(
        **SIZES, max_length=LONG, projection_dim=16, **more
    ),
    "reformer": lambda **more: zoo.ReformerAttention(
        **NEAR, num_hashes=2, num_buckets=16, **more
    ),
    "sinkhorn": lambda **more: zoo.SinkhornAttention(
        **SIZES, max_length=LONG, block_size=16, **more
    ),
    "synthesizer": lambda **more: zoo.SynthesizerAttention(
        **SIZES, max_length=LONG, **more
    ),
}
MIXERS = {
    "fourier": lambda **more: zoo.FourierMixing(**more),
    "tokens": lambda **more: zoo.TokenMixing(LONG, 16, **more),
    "gating": lambda **more: zoo.SpatialGatingUnit(LONG, 32, **more),
}
MADE = {**ATTENTION, **MIXERS}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    """A sequence of one block needs nothing of others, which is less work."""
    monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(max_tokens=64))


def test_all_layers_are_there():
    """A new kind of attention or mixing has a line here."""
    made = {type(make()) for make in MADE.values()}
    kinds = layers.AttentionLayer, MixingLayer
    there = {x for _, x in inspect.getmembers(layers, inspect.isclass)}
    abstract = {layers.AttentionLayer, MixingLayer}
    wanted = {x for x in there if issubclass(x, kinds)} - abstract
    assert wanted <= made, wanted - made


@pytest.mark.parametrize("name", MADE)
def test_a_step_of_training(name):
    check(MADE[name]())


# Those of whose loops a causal form is another: of others it is a mask.
@pytest.mark.parametrize("name", ["performer", "performer with a window", "linear"])
def test_a_causal_step_of_training(name):
    check(MADE[name](causal=True))


def check(layer):
    if hasattr(layer, "jit_compile"):
        layer.jit_compile = False  # operation by operation
    layer.build((1, LONG, 32))
    short, long = (Work(step, layer, length) for length in (SHORT, LONG))
    least, most = GROWS[layer.cost]
    assert least <= long.numbers / short.numbers <= most
    # nothing is larger than what the whole has in proportion to
    assert long.largest / short.largest <= most


def step(layer, length):
    x = tf.random.stateless_normal((1, length, 32), (0, 1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.square(layer(x)))
    tape.gradient(loss, [x, *(weight.value for weight in layer.trainable_weights)])


def test_work_by_hand():
    a, b = tf.zeros((4, 2, 3)), tf.zeros((4, 5, 3))
    assert Work(tf.matmul, a, tf.transpose(b, (0, 2, 1))).numbers == 2 * 4 * 2 * 3 * 5
    assert Work(lambda: tf.matmul(a, b, transpose_b=True)).numbers == 240
    assert Work(tf.einsum, "bij,bkj->bik", a, b).numbers == 240
    assert Work(lambda: tf.matmul(a[0], b[0, :2], transpose_a=True)).numbers == (
        6 + 6 + 2 * 3 * 3 * 2
    )

    def rounds():
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x + b), (0, b))

    # three rounds of a sum of 60 numbers, a counter, and what ends the loop
    assert 180 <= Work(rounds).numbers <= 180 + 12
    assert Work(rounds).largest == 60
