"""Arguments of Keras' attention that ours have in their places, and refuse."""

from keras_performer.layers import arguments

# Where these stand depends on the version of Keras.
_BY_NAME = (
    "The places of arguments are those of Keras 3.15: give those after attention_axes "
    "by name."
)


def no_window(layer, value):
    if value is not None:
        raise ValueError(
            f"sliding_window must be None: {type(layer).__name__} has no such window. "
            "Use LocalAttention for a window alone, or PerformerAttention(exact_window="
            f"...) for exact near keys. {_BY_NAME} Received: sliding_window={value!r}"
        )
    return None


def no_flash(layer, value):
    if not arguments.among(value, (None, False)):
        raise ValueError(
            "flash_attention must be None or False: it is a way to compute the "
            f"attention of Keras' own layer, which {type(layer).__name__} does not "
            f"take. Leave it out, or use keras.layers.MultiHeadAttention. {_BY_NAME} "
            f"Received: flash_attention={value!r}"
        )
    return value


def no_gate(layer, value):
    if not arguments.among(value, (None, False)):
        raise ValueError(
            f"use_gate must be False: {type(layer).__name__} has no gate of its "
            "output. Multiply by one after it, or use keras.layers.MultiHeadAttention. "
            f"{_BY_NAME} Received: use_gate={value!r}"
        )
    return False
