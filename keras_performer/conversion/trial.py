"""Trial calls of attention with the arguments of that in whose place it is to stand."""

import keras
import tensorflow as tf

from keras_performer.layers import keras_privates


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
