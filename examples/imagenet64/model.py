"""The image model: a `PerformerLM` over the 12,288 sub-pixels of an image.

The model reads the sequence shifted right by one (a 0 first), so that its output i is
the distribution of sub-pixel i given all before it.
"""

import keras

import keras_performer
from examples.imagenet64 import likelihoods
from examples.imagenet64.pixels import (
    ABOVE,
    CHANNELS,
    LENGTH,
    PREVIOUS,
    PixelEmbedding,
    PixelHead,
    shift,
)

__all__ = ["LENGTH", "PixelPerformer", "make", "shift"]


def make(config):
    """The model that a `Config` describes."""
    options = dict(
        vocabulary_size=likelihoods.NUM_VALUES,
        max_length=LENGTH,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        intermediate_dim=config.intermediate_dim,
        dropout=config.dropout,
        attention=config.attention,
        position_embedding=config.position_embedding,
        position_shape=(64, 64, CHANNELS),
        recompute=config.recompute,
        seed=config.seed,
    )
    if config.attention == "performer":
        options |= dict(
            feature_map=config.feature_map,
            num_random_features=config.num_random_features,
            exact_window=config.exact_window,
        )
    if config.likelihood == "categorical" and not config.neighbours:
        return keras_performer.PerformerLM(**options)  # the paper's
    return PixelPerformer(
        config.likelihood,
        config.num_mixtures,
        PREVIOUS + ABOVE if config.neighbours else PREVIOUS[:CHANNELS],
        **options,
    )


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelPerformer(keras_performer.PerformerLM):
    """A `PerformerLM` with a `PixelEmbedding` and a `PixelHead`.

    Args:
        likelihood: "mixture" or "categorical".
        num_mixtures: int, logistics of the mixture.
        distances: tuple of ints, which earlier sub-pixels are read.
        hidden_dim: int, width of the model.
        **kwargs: further arguments of `PerformerLM`.
    """

    def __init__(self, likelihood, num_mixtures, distances, hidden_dim, **kwargs):
        dtype = kwargs.get("dtype")
        super().__init__(
            hidden_dim=hidden_dim,
            embedding=PixelEmbedding(
                distances, hidden_dim, dtype=dtype, name="embedding"
            ),
            head=PixelHead(likelihood, num_mixtures, name="parameters"),
            **kwargs,
        )

    def get_config(self):
        config = super().get_config()
        del config["embedding"], config["head"]
        return {
            **config,
            "likelihood": self.head.likelihood_name,
            "num_mixtures": self.head.num_mixtures,
            "distances": self.embedding.distances,
        }
