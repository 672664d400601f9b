"""Linformer: attention to a fixed number of mixtures of keys and values."""

import functools
import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.dense import full_weight
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.visibility import without_hidden

SHARING = "none", "headwise", "key-value"


@keras.saving.register_keras_serializable(package="keras_performer")
class LinformerAttention(AttentionLayer):
    """Linformer attention to k mixtures of the keys, linear in the length.

    Learned matrices E and F mix S keys and S values into k each. The layer computes

        softmax(Q (E K)^T / sqrt(H)) F V

    E and F have weights for each position, so sequences have at most `max_length` keys;
    shorter ones use the first positions. Every mixture contains the whole sequence, so
    there is no causal form.

    Masked keys and values are set to 0 before mixing. Padding at the end changes
    nothing; padding on the left moves tokens to other weights. Mixtures are never
    masked.

    E and F, the weights `key_projection` and `value_projection`, start as Glorot
    uniform times 1/sqrt(2), as in the authors' code. Regularizers and constraints apply
    to the dense layers only.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        max_length: int, maximal number of keys in a sequence.
        projection_dim: int k, the number of mixtures. 256 is the largest value in the
            paper's experiments (section 5), for 512 and 1,024 tokens. Defaults to
            `256`.
        sharing: "none", E and F for each key-value head; "headwise", E and F shared by
            all heads, as in the authors' code; or "key-value", one matrix for all heads
            and for both E and F. Defaults to `"headwise"`.

    Call arguments and returns: as in `PerformerAttention`, but without `segment_ids`,
    `state` and `return_state`. With `return_attention_scores` the layer also returns
    the softmax times F, the weights of values, which can be negative and do not sum
    to 1.

    Raises:
        ValueError: if there are more than `max_length` keys (`InvalidArgumentError` in
            graphs of unknown length), and as in `AttentionLayer`.

    Reference:
        Wang et al. 2020, Linformer, arXiv 2006.04768, equation 7, and section 4 for
        `sharing`. Layerwise sharing (one E for all layers) is left out: Keras saves and
        loads the weights of each layer separately.

    Example:

    >>> layer = LinformerAttention(2, key_dim=8, max_length=512, projection_dim=32)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    >>> layer.key_projection.shape
    TensorShape([512, 32])
    """

    supports_causal = False
    drops_weights = True
    cost = "L"

    def __init__(
        self,
        *args: typing.Any,
        max_length: int,
        projection_dim: int = 256,
        sharing: typing.Literal["none", "headwise", "key-value"] = "headwise",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.max_length = arguments.positive_int("max_length", max_length)
        self.projection_dim = arguments.positive_int("projection_dim", projection_dim)
        self.sharing = arguments.one_of("sharing", sharing, SHARING)

    def build_attention(self):
        self.key_projection = self._add_projection("key_projection")
        self.value_projection = self.key_projection
        if self.sharing != "key-value":
            self.value_projection = self._add_projection("value_projection")

    def attend(self, query, key, value, visible, state=None, training=None):
        key = self._mixed(key, self.key_projection, visible.key_mask)
        value = self._mixed(value, self.value_projection, visible.key_mask)
        drop = functools.partial(self._dropout_layer, training=training)
        return ops.exact_attention(query, key, value, dropout=drop), None

    def _add_projection(self, name):
        heads = self.num_key_value_heads if self.sharing == "none" else 1
        shape = (heads, self.max_length, self.projection_dim)
        shape = shape if self.sharing == "none" else shape[1:]
        # Keras multiplies both fans by the axis of heads; `heads` undoes this
        scaling = keras.initializers.VarianceScaling(0.5 * heads, "fan_avg", "uniform")
        return full_weight(self, name, shape, scaling)

    def _mixed(self, x, projection, key_mask):
        """Mixes keys or values `(B, S, K, H)`: `(B, k, K, H)`, float32 or float64."""
        dtype = compute_dtype(x)
        x = without_hidden(tf.cast(x, dtype), key_mask)
        length = arguments.up_to_max_length(self, size(x, 1))
        # rows of E or F for the positions of the sequence, `(K, S, k)` or `(S, k)`
        rows = tf.cast(tf.convert_to_tensor(projection), dtype)[..., :length, :]
        heads = "k" if self.sharing == "none" else ""
        return tf.einsum(f"bskh,{heads}sr->brkh", x, rows)
