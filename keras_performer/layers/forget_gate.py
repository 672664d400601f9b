"""A forget gate: the weight of a key fades with the tokens between it and a query."""

import typing
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.keras_privates import in_symbolic_scope
from keras_performer.ops.shapes import compute_dtype


class ForgettingAttention(AttentionLayer):
    """The base class of attention layers that can have a forget gate.

    With `forget_gate=True` each token t has a log-decay for each key-value head n,

        g_t = log(sigmoid(w_n . x_t + b_n))

    and the weight of a key for a query, exact or estimated, is multiplied by the
    exponential of the log-decays of the tokens between the two: of the later one and
    of those before it, down to the earlier one, whose own does not count. A token that
    is masked as a key has a log-decay of 0.

    A mechanism gets the log-decays as the argument `decay` of `attend`, `scores` and,
    if it has one, `outline`: a float32 tensor `(B, T, K)`, float64 with float64 inputs.

    Args: those of `AttentionLayer`, and
        forget_gate: bool, whether the layer has a forget gate. It adds the sublayer
            `forget_gate`, with a kernel `(dim, K)` and a bias `(K,)` in float32. For
            self-attention only. Defaults to `False`.
        forget_gate_bias: pair of floats, the biases of the first and of the last head
            at first; those of the others are spread evenly between. A bias of 2 forgets
            half of a weight within 5 tokens, one of 7 within 760. Defaults to (2, 7).

    Reference:
        Lin et al. 2025, Forgetting Transformer, arXiv 2503.02130, equations 4 to 6;
        with features alone the gate of Random Feature Attention, arXiv 2103.02143,
        section 3.2, without its factor of new keys.
    """

    def __init__(
        self,
        *args: typing.Any,
        forget_gate: bool = False,
        forget_gate_bias: Sequence[float] = (2.0, 7.0),
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.forget_gate = arguments.boolean("forget_gate", forget_gate)
        self.forget_gate_bias = _pair(forget_gate_bias)

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self._forget_gate = None
        if self.forget_gate:
            heads = self.num_key_value_heads, self.forget_gate_bias
            self._forget_gate = ForgetGate(*heads)
            self._forget_gate.build(query_shape)

    def read(self, query, value=None, key=None, *args, **kwargs):
        others = [x for x in (value, key) if x is not None and x is not query]
        # Keras makes tensors of their own of equal ones where it asks for shapes
        if self.forget_gate and others and not in_symbolic_scope():
            raise ValueError(
                "forget_gate=True is for self-attention, as decays add up from token "
                "to token: call the layer with the query alone, or with the very same "
                "tensor as value and key. Received: another tensor as value or key"
            )
        return super().read(query, value, key, *args, **kwargs)

    def decays(self, inputs):
        if not self.forget_gate:
            return {}
        return {"decay": self._forget_gate(inputs.key, inputs.visible.key_mask)}

    def get_config(self):
        return {
            **super().get_config(),
            "forget_gate": self.forget_gate,
            "forget_gate_bias": self.forget_gate_bias,
        }


class ForgetGate(keras.layers.Layer):
    """Log-decays of tokens, at most 0, one for each key-value head.

    Args:
        num_heads: int K, key-value heads.
        initial_bias: pair of floats, the biases of the first and the last head.
    """

    def __init__(self, num_heads, initial_bias):
        super().__init__(name="forget_gate", dtype="float32", autocast=False)
        self.num_heads = num_heads
        self.initial_bias = initial_bias

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], self.num_heads)
        )
        first = np.linspace(*self.initial_bias, self.num_heads)
        self.bias = self.add_weight(
            name="bias",
            shape=(self.num_heads,),
            initializer=lambda shape, dtype: tf.constant(first, dtype),
        )

    def call(self, x, key_mask=None):
        """Log-decays `(B, T, K)` of tokens `(B, T, dim)`."""
        dtype = compute_dtype(x)
        x, kernel, bias = (
            tf.cast(tf.convert_to_tensor(z), dtype) for z in (x, self.kernel, self.bias)
        )
        decays = tf.math.log_sigmoid(tf.tensordot(x, kernel, 1) + bias)
        if key_mask is None:
            return decays
        return tf.where(key_mask[..., tf.newaxis], decays, tf.zeros_like(decays))

    def load_own_variables(self, store):
        # a file of attention without a gate has none: it stays
        if store.keys():
            super().load_own_variables(store)


def _pair(biases):
    """The argument `forget_gate_bias`."""
    try:
        first, last = map(float, biases)
    except (TypeError, ValueError):
        first = last = float("nan")
    if not np.isfinite([first, last]).all():
        raise ValueError(
            "forget_gate_bias must be a pair of finite floats, the biases of the first "
            f"and of the last head. Received: forget_gate_bias={biases!r}"
        )
    return first, last
