"""Whether attention can be called as that in whose place it is to stand."""

import inspect

import keras
import tensorflow as tf

from keras_performer.layers import AttentionLayer, keras_privates


def call_as_known(twin, layer):
    """Calls a twin as a layer is called, as far as that is known. Nothing changes.

    The calls of a layer in a graph are known. Of another it is known whether it was
    built to attend to a sequence of another length.

    Args:
        twin: an `AttentionLayer`.
        layer: a built attention layer.

    Raises:
        ValueError: what the twin refuses.
    """
    calls = keras_privates.symbolic_calls(layer)
    for args, kwargs in calls or _across(layer):
        _check_rank_of_mask(layer, args, kwargs)
        try:
            twin.compute_output_spec(*args, **kwargs)
        except ValueError as error:  # Keras says more before it
            words = str(error).rpartition("Error encountered:\n\n")[-1]
            raise ValueError(words) from error


def _across(layer):
    """The call of a layer that was built for queries and keys of two lengths, if so."""
    shapes = (layer.get_build_config() or {}).get("shapes_dict", {})
    names = "query_shape", "value_shape", "key_shape"
    shapes = [shapes[name] for name in names if shapes.get(name) is not None]
    lengths = [tf.TensorShape(shape[1:-1]) for shape in shapes]
    if all(lengths[0].is_compatible_with(length) for length in lengths):
        return []
    return [([keras.KerasTensor(x, layer.compute_dtype) for x in shapes], {})]


def _check_rank_of_mask(layer, args, kwargs):
    """Refuses a mask that Keras reads as (T, S), where (B, S) is read here."""
    given = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    shape = tuple(getattr(given.get("attention_mask"), "shape", ()))
    if len(shape) == 2 and shape[0] != 1 and not isinstance(layer, AttentionLayer):
        raise ValueError(
            "attention_mask of rank 2 is one of queries and keys, (T, S), in Keras, "
            "and would be read as (B, S): call the layer with use_causal_mask=True or "
            "a mask of keys (B, 1, S). Received: attention_mask of shape "
            f"{shape}"
        )
