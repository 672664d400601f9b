"""Packed sequences in a layer: from ids of segments to where segments start."""

import tensorflow as tf

from keras_performer import ops
from keras_performer.layers.key_masks import one_for_each_token


def token_ids(layer, segment_ids, query, key):
    """Ids of the segment of each token, checked, `(B, T)` int64; `None` stays.

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
            "call it without segment_ids, with a segment in each row of the batch, or "
            f"use PerformerAttention. Received: segment_ids, and layer={layer.name!r}"
        )
    if not tf.TensorShape(query.shape[:-1]).is_compatible_with(key.shape[:-1]):
        raise ValueError(
            "segment_ids belong to self-attention, with one key for each query. "
            f"Received: query of shape {tuple(query.shape)} and key of shape "
            f"{tuple(key.shape)}"
        )
    ids = checked_ids(segment_ids, query)
    return layer._axes.fold_places(ids)


def checked_ids(segment_ids, x):
    """Ids of the segment of each token of x, `x.shape[:-1]` int64."""
    ids = tf.convert_to_tensor(segment_ids)
    shapes = x.shape[:-1], (1, *x.shape[1:-1])
    fits = any(map(ids.shape.is_compatible_with, shapes))
    if not (fits and ids.dtype.is_integer):
        raise ValueError(
            f"segment_ids must be ints of shape {tuple(x.shape[:-1])}, one for "
            f"each token. Received: segment_ids of shape {tuple(ids.shape)} and dtype "
            f"{ids.dtype.name}"
        )
    # of 64 bits: hashes of documents are ids, too
    return one_for_each_token("segment_ids", tf.cast(ids, tf.int64), x)


def with_starts(inputs, state):
    """The `Inputs` of a call, of which `visible` says where segments start.

    Args:
        inputs: `Inputs` with what `token_ids` returned.
        state: the state of the layer, or `None`.
    """
    starts = segment_starts(inputs.segment_ids, state)
    if starts is None:
        return inputs
    return inputs._replace(visible=inputs.visible._replace(starts=starts))


def segment_starts(segment_ids, state):
    """Where segments start, bool `(B, T)`; `None` without ids.

    Args:
        segment_ids: int64 tensor `(B, T)`, or `None`.
        state: dict whose entry `"segment"` is the id of the token before, or `None`.
    """
    if segment_ids is None:
        return None
    last_id = None
    if state is not None:
        if "segment" not in state:
            raise ValueError(
                "A state that is to go on with segment_ids knows the last of them: use "
                "initial_state(batch_size, packed=True), or give segment_ids from the "
                f"first call on. Received: state with the entries {list(state)}"
            )
        last_id = state["segment"]
    return ops.segment_starts(segment_ids, last_id)


def last_segment(segment_ids, state):
    """The entry `"segment"` of the state after a call, in a dict; `{}` if not packed.

    Args:
        segment_ids, state: as in `segment_starts`. Without ids tokens go on with the
            segment of the state.
    """
    earlier = {} if state is None else state
    if segment_ids is not None:
        last = [earlier["segment"][:, tf.newaxis]] if earlier else []
        return {"segment": tf.concat([*last, segment_ids], 1)[:, -1]}
    return {"segment": earlier["segment"]} if "segment" in earlier else {}
