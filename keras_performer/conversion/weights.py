"""Weights carried over from one model to another that is like it."""

import tempfile
import warnings

from keras_performer.layers import config
from keras_performer.layers.config import apply_change, change_of


def copy_weights(source, target, replacements):
    """Gives a model the weights of another, its vocabularies, and what is frozen.

    Args:
        source, target: built layers; each layer inside of the source has one in the
            same place inside of the target.
        replacements: dict of layers of the source to layers with the weights that the
            target gets in their place.
    """
    copies: dict = {}
    for given, own in config.pairs(source, target, leaves=replacements):
        if not (given.trainable and own.trainable):  # where it is not as it is
            own.trainable = given.trainable
        if copies.setdefault(given, own) is not own and given.weights:
            warnings.warn(
                f"{given.name} stands in several models inside of {source.name}. In "
                "the new one each has a copy of its own: they train apart.",
                stacklevel=5,
            )
        if given in replacements:
            copy_weights(replacements[given], own, {})
            continue
        if change := change_of(given):
            apply_change(own, change)
            if "lora_alpha" in change:  # not in Keras' config of a dense layer
                own.lora_alpha = change["lora_alpha"]
            # Keras would save the sum of a kernel and its LoRA
            for x, y in zip(given.variables, own.variables, strict=True):
                y.assign(x)
        else:
            store: dict = {}
            given.save_own_variables(store)
            if store:
                own.load_own_variables(store)
        if hasattr(given, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                given.save_assets(folder)
                own.load_assets(folder)
