"""Weights carried over from one model to another that is like it."""

import tempfile
import warnings

from keras_performer.layers import places


def copy_weights(source, target, instead):
    """Gives a model the weights of another, its vocabularies, and what is frozen.

    Args:
        source, target: built layers; each layer inside of the source has one in the
            same place inside of the target.
        instead: dict of layers of the source to those from which what stands in their
            place in the target gets its weights.
    """
    copies: dict = {}
    for given, own in places.pairs(source, target, leaves=instead):
        if not (given.trainable and own.trainable):  # where it is not as it is
            own.trainable = given.trainable
        if copies.setdefault(given, own) is not own and given.weights:
            warnings.warn(
                f"{given.name} stands in several models inside of {source.name}. In "
                "the new one each has a copy of its own: they train apart.",
                stacklevel=5,
            )
        if given in instead:
            copy_weights(instead[given], own, {})
            continue
        if not _quantized_or_with_lora(given, own):
            store: dict = {}
            given.save_own_variables(store)
            if store:
                own.load_own_variables(store)
        if hasattr(given, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                given.save_assets(folder)
                own.load_assets(folder)


def _quantized_or_with_lora(given, own):
    """Does to a layer what was done to another, and gives it all its variables.

    Keras saves the sum of a kernel and its LoRA, so that what it loads is not what was
    there.

    Returns:
        False if nothing was done to the other.
    """
    mode = getattr(given.dtype_policy, "quantization_mode", None)
    with_lora = getattr(given, "lora_enabled", False)
    if mode is None and not with_lora:
        return False
    if getattr(own.dtype_policy, "quantization_mode", None) != mode:
        own.quantize(mode, type_check=False)
    if with_lora:
        if not own.lora_enabled:
            own.enable_lora(given.lora_rank, lora_alpha=given.lora_alpha)
        own.lora_alpha = given.lora_alpha
    for x, y in zip(given.variables, own.variables, strict=True):
        y.assign(x)
    return True
