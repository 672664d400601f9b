"""The two models that are served, which differ in attention alone."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks.serving.key_value_cache import ExactWithCache

CONTENDERS = ("performer", "key-value cache")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model; its weights are random, which speed does not feel."""

    vocabulary_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    hidden_dim: int = 256
    num_random_features: int = 256


def export(contender, longest, sizes, folder):
    """Writes a model with the signatures `serve`, `prefill` and `decode`.

    Args:
        contender: one of `CONTENDERS`.
        longest: int, the most tokens of a sequence. A cache has that many places.
        sizes: `Sizes`.
        folder: where to write.

    Returns:
        Bytes of the state of one session.
    """
    keras.utils.set_random_seed(0)
    options = dataclasses.asdict(sizes)
    features = options.pop("num_random_features")
    if contender == "performer":
        choice = {"num_random_features": features}
    else:
        head_dim = sizes.hidden_dim // sizes.num_heads
        choice = {
            "attention": ExactWithCache(
                sizes.num_heads, head_dim, cache_length=longest, rotary=True
            )
        }
    model = keras_performer.PerformerLM(max_length=longest, seed=0, **options, **choice)
    model.export(folder, verbose=False)
    state = tf.nest.flatten(model.initial_state(1))
    return sum(x.dtype.size * int(np.prod(x.shape)) for x in state)
