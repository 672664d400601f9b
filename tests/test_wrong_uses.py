"""Errors say what was wanted, what was received, and what to do.

Each case in `wrong_uses` is an expression after `>>>` and three parts of its error: the
beginning, the received value and the advice. Expressions use the names of this file.
"""

import pathlib
import re
import typing

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer import PerformerAttention
from tests.layers.inputs import language_model

X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype("float32")
IDS = np.ones((2, 6), "int32")
MEMORY = np.random.default_rng(1).standard_normal((2, 9, 8)).astype("float32")
HEADS, OTHERS = X.reshape(2, 6, 2, 4), MEMORY.reshape(2, 9, 2, 4)
BATCHED = np.ones((2, 6, 6), bool)
ERRORS = {
    "AssertionError": AssertionError,
    "InvalidArgumentError": tf.errors.InvalidArgumentError,
    "NotImplementedError": NotImplementedError,
}


def made(*arguments, **options):
    return PerformerAttention(*(arguments or (2, 4)), **options)


def causal(**options):
    return made(causal=True, num_random_features=8, **options)


def sequential(layer):
    return keras.Sequential([keras.Input((6, 8)), layer])


def redrawn(layer):
    layer(X)
    layer.redraw_features()


def fitted():
    model = sequential(keras.layers.Dense(2))
    model.compile("sgd", "mse")
    targets = np.zeros((2, 6, 2))
    model.fit(X, targets, verbose=0, callbacks=[keras_performer.RedrawFeatures(1)])


def built(layer, *inputs):
    layer(*inputs)
    return layer


def decoder_of_two():
    return built(keras_performer.PerformerDecoder(8, 2), X, MEMORY)


def with_state(layer, state):
    return layer(X, state=state, return_state=True)


def halves():
    state = causal().get_initial_state(2)
    return tf.nest.map_structure(lambda x: tf.cast(x, "float16"), state)


def generated(prompt=((1, 2),), max_length=8, **options):
    return keras_performer.generate(language_model(**options), prompt, max_length)


def with_keras_attention():
    start = keras.Input((6, 8))
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    return keras.Model(start, attention(start, start))


NAMES = {
    **vars(keras_performer),
    **vars(keras_performer.feature_maps),
    **vars(keras_performer.testing),
    **globals(),
}


class WrongUse(typing.NamedTuple):
    use: str
    error: type
    wanted: str
    others: list


def read(path):
    for use, text in re.findall(r"^>>> (.*)\n((?:[^>#].*\n)+)", path.read_text(), re.M):
        kind, _, rest = text.partition(": ")
        wanted, *others = (rest if kind in ERRORS else text).split(" ...")
        error = ERRORS.get(kind, ValueError)
        yield WrongUse(use, error, wanted, [one.strip() for one in others])


FILES = sorted(pathlib.Path(__file__).with_name("wrong_uses").glob("*.txt"))
ALL = [one for path in FILES for one in read(path)]


def said_by(error):
    """Returns the message, without Keras' text about the call and its inputs."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    text = re.sub(r"\AException encountered when calling .*\n\n", "", text)
    return text.partition("\n\nArguments received by")[0]


@pytest.mark.parametrize("wrong", ALL, ids=lambda one: one.wanted[:40])
def test_a_wrong_use_is_told_what_was_wanted_what_came_and_what_to_do(wrong):
    with pytest.raises(wrong.error) as caught:
        eval(wrong.use, NAMES)
    message = said_by(caught.value)
    assert message.startswith(wrong.wanted)
    received, advice = wrong.others
    assert received in message and advice in message
    # our own messages contain "Received"; other errors come from operations
    assert "Received" in message or wrong.error is not ValueError


def test_there_are_many():
    assert len(ALL) >= 80
