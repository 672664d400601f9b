"""Packed sequences in a layer: ids of segments, and the last of them in its state."""

import tensorflow as tf

from keras_performer import ops


def token_ids(layer, segment_ids, query, key):
    """Ids of the segment of each token as int32, checked; `None` stays.

    Args:
        layer: the `AttentionLayer` that got them.
        segment_ids: int tensor of the shape of the query without its last axis.
        query, key: tensors, as the layer was given them.
    """
    if segment_ids is None:
        return None
    if not layer.supports_segments:
        raise ValueError(
            f"{type(layer).__name__} cannot keep segments of a packed sequence apart: "
            "call it without segment_ids, with a segment in each row of the batch."
        )
    if not tf.TensorShape(query.shape[:-1]).is_compatible_with(key.shape[:-1]):
        raise ValueError(
            "segment_ids belong to self-attention, with one key for each query. "
            f"Received: query of shape {tuple(query.shape)} and key of shape "
            f"{tuple(key.shape)}"
        )
    ids = tf.convert_to_tensor(segment_ids)
    fits = ids.shape.is_compatible_with(query.shape[:-1])
    if not (fits and ids.dtype.is_integer):
        raise ValueError(
            f"segment_ids must be ints of shape {tuple(query.shape[:-1])}, one for "
            f"each token. Received: segment_ids of shape {tuple(ids.shape)} and dtype "
            f"{ids.dtype.name}"
        )
    return tf.cast(ids, tf.int32)


def starts(segment_ids, state):
    """Which tokens start a segment, `(B, T)`, as `ops.Visibility` takes it, or `None`.

    Args:
        segment_ids: what `token_ids` returned, over one axis.
        state: the state of the layer, or `None`.
    """
    if segment_ids is None:
        return None
    if state is None:
        return ops.segment_starts(segment_ids)
    if "segment" not in state:
        raise ValueError(
            "A state that is to go on with segment_ids knows the last of them: use "
            "initial_state(batch_size, packed=True), or give segment_ids from the "
            f"first call on. Received: state with the entries {list(state)}"
        )
    return ops.segment_starts(segment_ids, state["segment"])


def later_entry(segment_ids, state):
    """What the state after the last token has of segments, a dict.

    Without ids the tokens go on with the segment of the state.
    """
    earlier = {} if state is None else state
    entry = {"segment": earlier["segment"]} if "segment" in earlier else {}
    if segment_ids is None:
        return entry
    ids = [x[:, tf.newaxis] for x in entry.values()]
    return {"segment": tf.concat([*ids, segment_ids], 1)[:, -1]}
