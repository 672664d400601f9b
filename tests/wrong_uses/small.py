"""Small layers, models and inputs to be used wrongly."""

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM

FOUND_AS_IT_RUNS = tf.errors.InvalidArgumentError

X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype("float32")
IDS = np.ones((2, 6), "int32")


def made(*arguments, **options):
    return PerformerAttention(*(arguments or (2, 4)), **options)


def causal(**options):
    return made(causal=True, num_random_features=8, **options)


def language_model(**options):
    return PerformerLM(
        11, max_length=16, num_layers=1, num_heads=1, hidden_dim=8, **options
    )


def sequential(layer):
    return keras.Sequential([keras.Input((6, 8)), layer])
