"""Arrays of tensors that a loop writes."""

import tensorflow as tf


def new_array(dtype, count, shape):
    """A `tf.TensorArray` that knows what it will hold before anything is written.

    TensorFlow would learn it from the first write. LiteRT makes one tensor of an array,
    and needs its shape where it is made. The class takes static shapes alone: for
    others the list that it wraps is made here.

    Args:
        dtype: of the elements.
        count: int or scalar tensor, how many there are.
        shape: of each, ints and scalar tensors.
    """
    if tf.executing_eagerly() or all(isinstance(size, int) for size in shape):
        return tf.TensorArray(dtype, count, element_shape=shape)
    reserved = tf.raw_ops.TensorListReserve(
        element_shape=tf.stack(shape), num_elements=count, element_dtype=dtype
    )
    return tf.TensorArray(dtype, flow=reserved)
