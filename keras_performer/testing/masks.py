"""Check that masked tokens do not change other outputs of a model."""

import numpy as np
import tensorflow as tf

from keras_performer.layers import keras_privates
from keras_performer.testing.inputs import batch_and_length, changed, random_inputs
from keras_performer.testing.leaks import calls_of, layer_at_fault

NUM_PADDED = 4


def check_masks(model, inputs=None, mask=None, *, tolerance=1e-5, seed=0):
    """Raises an error if outputs of a model depend on masked tokens.

    It calls the model twice, with different values at masked tokens, and compares the
    outputs of all other tokens and of whole sequences. The error names the layer that
    looks at masked tokens. Without `mask` it uses the masks that layers of the model
    make from their inputs (`keras.layers.Embedding(mask_zero=True)`,
    `keras.layers.Masking`), and changes the outputs of these layers at masked tokens.

    Args:
        model: a Keras model or layer of any kind.
        inputs: inputs of the model: an array `(B, T, ...)`, or nested lists and dicts
            of arrays, with masked tokens. Defaults to random inputs for `model.inputs`
            whose last tokens are 0.
        mask: bool array of shape `(B, T)`, false for masked tokens. Use it if the model
            takes its mask among `inputs`, as bools or as 0 and 1. Defaults to the masks
            that layers make.
        tolerance: float, the largest change that counts as rounding, relative to the
            median size of the numbers in an output. Defaults to `1e-05`.
        seed: int, seeds the random inputs and changes. Defaults to `0`.

    Raises:
        AssertionError: if an output depends on masked tokens.
        ValueError: if the model cannot be checked: inputs are missing, or none or all
            of their tokens are masked.

    Example:

    >>> import keras
    >>> embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    >>> ids = np.array([[4, 7, 2, 0, 0]])
    >>> check_masks(keras.Sequential([embedding, keras.layers.LSTM(3)]), ids)
    >>> of_all_tokens = keras.layers.LayerNormalization(axis=1, name="norm")
    >>> try:
    ...     check_masks(keras.Sequential([embedding, of_all_tokens]), ids)
    ... except AssertionError as error:
    ...     print("norm (LayerNormalization)" in str(error))
    True
    """
    random = np.random.default_rng(seed)
    if inputs is None:
        inputs = random_inputs(model, random, NUM_PADDED)
    shape = batch_and_length(inputs)
    kept = {}  # dict of shapes to bools, true for tokens that no mask hides

    def change_masked(layer, first_input, outputs):
        made = _made_mask(layer, first_input)
        if made is None or made.shape != outputs.shape[:2]:
            return outputs
        kept[made.shape] = kept.get(made.shape, True) & made
        return tf.constant(changed(outputs.numpy(), ~made, random), outputs.dtype)

    if mask is None:
        calls, others = (calls_of(model, inputs, change_masked) for _ in range(2))
    else:
        kept[shape] = np.asarray(mask, bool)
    masks = list(kept.values())
    if not any(x.any() and not x.all() for x in masks) or masks[0].ndim != 2:
        raise ValueError(
            f"Masks must have shape (B, T), here {shape}, and be true for some tokens "
            "and false for others. Without the argument mask, a layer must make a "
            "mask, such as Embedding(mask_zero=True). Received from "
            f"{'layers of the model' if mask is None else 'mask'}: "
            f"{[f'{x.shape}, true for {x.sum()} tokens' for x in masks]}"
        )
    if mask is not None:
        if masks[0].shape != shape:
            raise ValueError(
                "mask must have the shape (B, T) of the first array of inputs. "
                f"Received: mask of shape {masks[0].shape}, inputs of shape {shape}"
            )
        other = changed(inputs, ~masks[0], random, but=masks[0])
        calls, others = calls_of(model, inputs), calls_of(model, other)
    found = layer_at_fault(calls, others, kept, tolerance)
    if found is not None:
        change, layer = found
        raise AssertionError(
            f"Outputs change by up to {change:.2g} with masked tokens. The first layer "
            f"whose own inputs at other tokens stay the same is {layer}: use a layer "
            "there that uses masks, and check that it gets the mask."
        )


def _made_mask(layer, x):
    """Returns the mask that a layer makes for inputs without one, or `None`."""
    if not tf.is_tensor(x) or keras_privates.implicit_mask(x) is not None:
        return None
    mask = layer.compute_mask(x, None) if layer.supports_masking else None
    return None if mask is None else np.asarray(mask)
