"""Tapes: if one records, and bodies of loops and branches that none looks into."""

import tensorflow as tf

# Private, as what is public neither tells of the tapes of others nor stops them.
from tensorflow.python.eager import record


def recording():
    """True while any tape records, as it does where a model trains."""
    return record.could_possibly_record()


def unrecorded(body):
    """The body of a loop or branch; in a graph tapes record these, not what is inside.

    What is inside they never use, but under two tapes TensorFlow makes the derivatives
    of each loop and branch in it, and the derivatives of these, as it is traced.

    Args:
        body: a function of tensors. It may use no tape of its own.
    """
    if tf.executing_eagerly():
        return body

    def quiet(*args):
        with record.stop_recording():
            return body(*args)

    return quiet
