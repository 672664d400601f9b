"""Base class of mixers, which replace attention and have no queries and keys."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers import arguments, call_inputs
from keras_performer.layers import state as layer_state
from keras_performer.layers.arguments import LayerInput
from keras_performer.layers.call_inputs import as_mask
from keras_performer.layers.config import KeepsInnerChanges, TracesSpec
from keras_performer.ops.slices import current_slices


class MixingLayer(TracesSpec, KeepsInnerChanges, keras.layers.Layer):
    """Base class of mixers, which combine tokens by position.

    `PerformerBlock` and `PerformerLM` take a mixer instead of an `AttentionLayer`. A
    mixer is called like a `PerformerBlock`. A subclass defines

        mix(x, mask, training=None)

    with x `(B, T, dim)` in the compute dtype and `mask` a bool tensor `(B, T)`, false
    for tokens that must not count, or `None`. `mix` returns `(B, T, dim)`; this class
    then sets masked tokens to 0. Compute sums over tokens in float32, and create
    weights in `build`. Add arguments and register the class as in `AttentionLayer`.

    The class attributes `supports_causal` and `cost` describe a mixer, as in
    `AttentionLayer`. Mixers have no state and no segments.

    Args:
        causal: bool, hide later tokens. Defaults to `False`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: tensor of shape `(B, T, dim)`.
        mask: bool tensor of shape `(B, T)`, false for padding. Defaults to Keras'
            implicit mask.
        training: bool, passed to `mix`.
        segment_ids, positions, state, return_state: not supported; they raise an error.

    Returns:
        Tensor of shape `(B, T, dim)`, 0 for masked tokens.

    Raises:
        ValueError: if a mixer does not support an argument, or a shape is wrong.

    Example:

    A mixer that gives each token the token before it:

    >>> class Shift(MixingLayer):
    ...     supports_causal = True
    ...     def mix(self, x, mask, training=None):
    ...         return tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
    >>> Shift(causal=True)(tf.constant([[[1.0], [2.0], [3.0]]])).numpy().ravel()
    array([0., 1., 2.], dtype=float32)
    """

    supports_causal = False
    supports_state = False
    supports_segments = False
    supports_cross_attention = False
    cost = "L"

    def __init__(self, *, causal: bool = False, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.causal = arguments.boolean("causal", causal)
        arguments.check_causal(self, self.causal)

    def call(
        self,
        x: LayerInput,
        mask: LayerInput | None = None,
        training: bool | None = None,
        segment_ids: LayerInput | None = None,
        positions: LayerInput | None = None,
        state: typing.Any = None,
        return_state: bool = False,
    ) -> typing.Any:
        if state is not None or return_state:
            raise layer_state.no_state(self)
        if current_slices() is not None:
            raise ValueError(
                f"{type(self).__name__} mixes all tokens of a sequence, which must be "
                "on one device: with sequence_parallel use PerformerAttention, or "
                f"another strategy. Received: layer={self.name!r}"
            )
        given = {"segment_ids": segment_ids, "positions": positions}
        names = " and ".join(x for x, value in given.items() if value is not None)
        if names:
            raise ValueError(
                f"{type(self).__name__} mixes tokens by their positions in the row: "
                f"call it without {names}, with one sequence in each row of the batch, "
                f"or use an attention layer that reads them. Received: {names}"
            )
        call_inputs.check_inputs(x=x)
        of_mask = tf.TensorShape(getattr(mask, "shape", None))
        if of_mask.rank is not None and of_mask.rank > 2:
            raise ValueError(
                f"{type(self).__name__} mixes the tokens of one tensor and has no "
                "cross-attention: call it with one tensor, and with a mask of shape "
                "(batch, length) if needed. Received: a second tensor of shape "
                f"{tuple(of_mask)}"
            )
        x, mask = call_inputs.tokens(self, "x", x, mask)
        mask = as_mask("mask", mask, x)
        return zero_masked(self.mix(x, mask, training), mask)

    if typing.TYPE_CHECKING:  # Keras types its own `__call__` as taking anything
        __call__ = call

    def mix(
        self, x: tf.Tensor, mask: tf.Tensor | None, training: bool | None = None
    ) -> tf.Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define `mix`.")

    def get_initial_state(
        self, batch_size: int | tf.Tensor, packed: bool = False
    ) -> None:
        """Raises a `ValueError`: a mixer has no state."""
        raise layer_state.no_state(self)


class HadHiddenDim:
    """Mixin for mixers whose `intermediate_dim` was `hidden_dim` until 2026-11-28."""

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        if "hidden_dim" in config and "intermediate_dim" not in config:
            config["intermediate_dim"] = config.pop("hidden_dim")
        return super().from_config(config, custom_objects)


def zero_masked(x, mask):
    """Returns x `(B, T, dim)` with zeros where a mask `(B, T)`, if any, is false."""
    if mask is None:
        return x
    return tf.where(tf.expand_dims(mask, -1), x, tf.zeros((), x.dtype))
