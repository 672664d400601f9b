"""Attention with the cache of KerasHub, for its converted models.

KerasHub's `TransformerDecoder`, and so GPT-2 and similar models, contain
`keras_hub.layers.CachedMultiHeadAttention`. A mask `(B, T, S)` makes it causal. The
model passes keys and values of earlier tokens in a tensor, the cache.
"""

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import AttentionLayer, ExactAttention, PerformerAttention
from keras_performer.layers.call_inputs import as_mask, visible_keys
from keras_performer.layers.keras_privates import implicit_mask
from keras_performer.ops.shapes import size
from keras_performer.ops.visibility import mask_or_all


def is_cached(layer):
    """Returns True if a layer has the call of KerasHub's attention with a cache."""
    kind = type(layer)
    of_keras_hub = kind.__module__.split(".")[0] == "keras_hub"
    return isinstance(layer, CachedAttention) or (
        of_keras_hub and kind.__name__ == "CachedMultiHeadAttention"
    )


class CachedAttention(AttentionLayer):
    """An `AttentionLayer` with the call of KerasHub's `CachedMultiHeadAttention`.

    Call arguments (others as in `AttentionLayer`):
        query, value, key: with a cache the new tokens `(B, T, dim)`.
        attention_mask: tensor of shape `(B, 1, S)`, true for keys that may be seen; or
            `(B, T, S)`, such a mask combined with a causal mask. Keras' implicit masks
            also apply; the cache does not keep them for later calls.
        cache: tensor of shape `(B, 2, S, num_heads, key_dim)`, keys and values.
        cache_update_index: int or scalar tensor, index in the cache for the first key
            and value of this call. Defaults to `None`: the cache is complete.

    Returns:
        Tensor of shape `(B, T, dim)`, followed by the scores or the cache, if any. A
        call with a cache costs as much as a call on S tokens, even for one new token.
    """

    supports_state = False  # the model keeps keys and values

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.forget_gate:
            raise ValueError(
                f"{type(self).__name__} has no forget gate, because the model's cache "
                "keeps no decays: use forget_gate=False. Received: forget_gate=True"
            )

    def call(
        self,
        query,
        value,
        key=None,
        attention_mask=None,
        cache=None,
        cache_update_index=None,
        return_attention_scores=False,
        training=None,
    ):
        if cache is None:
            more = attention_mask, return_attention_scores, training
            return super().call(query, value, key, None, None, None, *more)
        if return_attention_scores:
            raise ValueError(
                "return_attention_scores=True needs the whole sequence in one call: "
                "leave the cache out. Received: a cache"
            )
        masks = [implicit_mask(x) for x in (query, value, key)]
        keys, values = tf.unstack(cache, axis=1)
        start = 0 if cache_update_index is None else cache_update_index
        seen = visible_keys(
            keys[:, :, 0] if cache_update_index is None else value, *masks[1:]
        )
        if cache_update_index is not None:
            if seen is not None:
                everything = tf.ones(tf.shape(keys)[:2], tf.bool)
                seen = keras.ops.slice_update(everything, (0, start), seen)
            keys = _put(keys, start, self.project("key", value if key is None else key))
            values = _put(values, start, self.project("value", value))
            cache = tf.stack((keys, values), axis=1)
        visible, nan_if_refused = read_mask(attention_mask, start)
        if seen is not None:
            seen = tf.logical_and(seen, mask_or_all(visible.key_mask, keys))
            visible = visible._replace(key_mask=seen)
        query_mask = as_mask("query_mask", masks[0], query)
        query += tf.cast(nan_if_refused, query.dtype)
        heads = self.project("query", query)
        # Causality and windows depend on positions: put the queries among the keys.
        placed = visible.causal or getattr(self, "exact_window", None) is not None
        among_keys = _put(tf.zeros_like(keys), start, heads) if placed else heads
        attended, _ = self.attend(among_keys, keys, values, visible, None, training)
        if placed:
            attended = tf.gather(attended, start + tf.range(size(heads, 1)), axis=1)
        return self.write(attended, query_mask, training), cache

    def read(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        segment_ids=None,
    ):
        visible, nan_if_refused = read_mask(attention_mask)
        # Keras passes implicit masks to arguments only, and KerasHub has none for them.
        given = (query_mask, query), (value_mask, value), (key_mask, key)
        masks = [implicit_mask(x) if mask is None else mask for mask, x in given]
        query += tf.cast(nan_if_refused, query.dtype)
        if attention_mask is not None:
            attention_mask = visible.key_mask[:, tf.newaxis]
        masks.append(attention_mask)
        causal = use_causal_mask or visible.causal
        return super().read(query, value, key, *masks, causal, segment_ids)


@keras.saving.register_keras_serializable(package="keras_performer")
class CachedPerformerAttention(CachedAttention, PerformerAttention):
    """Performer attention that replaces KerasHub's `CachedMultiHeadAttention`."""


@keras.saving.register_keras_serializable(package="keras_performer")
class CachedExactAttention(CachedAttention, ExactAttention):
    """Exact attention that replaces KerasHub's `CachedMultiHeadAttention`."""


WITH_CACHE = {
    PerformerAttention: CachedPerformerAttention,
    ExactAttention: CachedExactAttention,
}


def read_mask(mask, start=0):
    """Reads a mask of keys `(B, 1, S)`, or one combined with a causal mask `(B, T, S)`.

    `start` is the index of the first query among the keys.

    Returns:
        An `ops.Visibility`, and a scalar: 0, or NaN for any other mask, because XLA
        leaves out the assertion.
    """
    if mask is None:
        return ops.Visibility(), 0.0
    mask = tf.cast(mask, tf.bool)
    if len(mask.shape) != 3:
        raise ValueError(
            "attention_mask must have shape (B, 1, S) or (B, T, S): add the missing "
            "axis. In Keras a mask of rank 2 is (T, S). Received: attention_mask of "
            f"shape {tuple(mask.shape)}"
        )
    # The last query sees all keys that are not masked.
    keys = mask[:, -1]
    if mask.shape[1] == 1:
        return ops.Visibility(keys), 0.0
    causal = ops.Visibility(keys, causal=True)
    queries = start + tf.range(size(mask, 1))
    as_read = tf.reduce_all(mask == causal.rows(queries, size(mask, 2)))
    checked = tf.debugging.Assert(
        as_read,
        [
            "attention_mask must be a mask of keys (B, 1, S), or a mask of keys "
            "combined with a causal mask (B, T, S): linear attention cannot hide other "
            "keys from a query."
        ],
    )
    with tf.control_dependencies([checked]):
        return causal, tf.where(as_read, 0.0, float("nan"))


def _put(x, start, part):
    """Returns x `(B, S, N, H)` with part `(B, T, N, H)` written at index `start`."""
    return keras.ops.slice_update(x, (0, start, 0, 0), tf.cast(part, x.dtype))
