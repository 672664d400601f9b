"""The image model: a `PerformerLM` over the 12,288 sub-pixels of an image.

The model reads the sequence shifted right by one (a 0 first), so that its output i is
the distribution of sub-pixel i given all before it.
"""

import keras

import keras_performer
from examples.imagenet64 import likelihoods
from examples.imagenet64.pixels import (
    CHANNELS,
    LENGTH,
    SIDE,
    PixelEmbedding,
    PixelHead,
    shift,
)
from keras_performer.layers import LocalAttention

__all__ = ["LENGTH", "SIDE", "PixelPerformer", "make", "shift"]


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
        position_shape=(SIDE, SIDE, CHANNELS),
        recompute=config.recompute,
        seed=config.seed,
    )
    if config.attention in ("performer", "exact"):
        options["forget_gate"] = False
    if config.attention == "performer":
        options |= dict(
            feature_map=config.feature_map,
            num_random_features=config.num_random_features,
            exact_window=config.exact_window,
        )
    elif config.attention == "local":
        grid = options["position_shape"]
        options["attention"] = LocalAttention(
            config.num_heads,
            config.hidden_dim // config.num_heads,
            dropout=config.dropout,
            sliding_window=config.exact_window,
            causal=True,
            rotary=grid if config.position_embedding == "rotary" else None,
        )
    if config.likelihood == "categorical":
        return keras_performer.PerformerLM(**options)  # the paper's
    return PixelPerformer(
        config.num_mixtures,
        num_last=config.num_last,
        start_of_row=config.start_of_row,
        **options,
    )


@keras.saving.register_keras_serializable(package="imagenet64")
class PixelPerformer(keras_performer.PerformerLM):
    """A `PerformerLM` with a `PixelEmbedding` and a `PixelHead`.

    Args:
        num_mixtures: int, logistics of the mixture.
        hidden_dim: int, width of the model.
        num_last: as in `PixelEmbedding`.
        start_of_row: as in `PixelEmbedding`.
        **kwargs: further arguments of `PerformerLM`.
    """

    def __init__(
        self, num_mixtures, hidden_dim, num_last=3, start_of_row="grey", **kwargs
    ):
        super().__init__(
            hidden_dim=hidden_dim,
            embedding=PixelEmbedding(
                hidden_dim,
                num_last,
                start_of_row,
                dtype=kwargs.get("dtype"),
                name="embedding",
            ),
            head=PixelHead(num_mixtures, name="parameters"),
            **kwargs,
        )

    def get_config(self):
        config = super().get_config()
        del config["embedding"], config["head"]
        return {
            **config,
            "num_mixtures": self.head.num_mixtures,
            "num_last": self.embedding.num_last,
            "start_of_row": self.embedding.start_of_row,
        }
