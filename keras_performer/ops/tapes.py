"""Bodies of loops and branches that gradient tapes do not look into."""

import tensorflow as tf

# Private, as tapes that are not one's own cannot be stopped by what is public.
from tensorflow.python.eager import record


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
