"""The state of an attention layer: a dict, of which a mechanism has one entry."""

import tensorflow as tf


def first(attention, batch_size, packed):
    """The state before the first token.

    Args:
        attention: nest of tensors, the entry of the mechanism.
        batch_size: int or scalar tensor B.
        packed: bool, whether calls are to have `segment_ids`.
    """
    position = tf.zeros((batch_size,), tf.int32)
    state = {"position": position, "attention": attention}
    return {**state, "segment": tf.cast(position, tf.int64)} if packed else state


def later(state, inputs, attention):
    """The state after the tokens of a call.

    Args:
        state: the state before them, or `None`.
        inputs: the `Inputs` of the call. Without ids its tokens go on with the segment
            of the state, if it has one.
        attention: the entry of the mechanism.
    """
    earlier = {} if state is None else state
    query, segment_ids = inputs.query, inputs.segment_ids
    position = tf.fill((tf.shape(query)[0],), tf.shape(query)[1])
    after = {"position": earlier.get("position", 0) + position, "attention": attention}
    if segment_ids is not None:
        last = [earlier["segment"][:, tf.newaxis]] if earlier else []
        after["segment"] = tf.concat([*last, segment_ids], 1)[:, -1]
    elif "segment" in earlier:
        after["segment"] = earlier["segment"]
    return after
