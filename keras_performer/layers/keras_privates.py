"""The parts of Keras that are not its public interface, and why each is needed.

No other file of the package uses any. `tests/layers/test_keras_privates.py` holds what
is said here against the oldest and the newest Keras that setup.cfg allows.
"""


def implicit_mask(x):
    """The mask that Keras keeps on a tensor, or `None`.

    `keras.layers.Layer` hands implicit masks to `call` as arguments only where they are
    named after an argument; `query_mask` of a layer that is called inside another
    layer's `call` is read from the tensor. Keras itself has `backend.get_keras_mask`.
    """
    return getattr(x, "_keras_mask", None)
