"""Reversible residual blocks, which recompute their inputs from their outputs."""

import random
import typing
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.arguments import LayerInput, positive_int
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.block import PerformerBlock
from keras_performer.layers.config import KeepsInnerChanges, as_layer, config_of
from keras_performer.layers.keras_privates import implicit_mask
from keras_performer.layers.performer import MAX_SEED
from keras_performer.ops.gradients import custom_gradient
from keras_performer.recompute.stateless_calls import (
    call_with_values,
    owned_by,
    split_variables,
    values_of,
)


def reversible_chain(
    functions: Sequence[Callable[[Any, Any, Any], tuple[Any, Any]]],
    first: tf.Tensor,
    second: tf.Tensor,
    params: Sequence[Any],
    state: Any = (),
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Applies functions to two streams alternately, and keeps only the outputs.

    Each function f maps `(a, b)` to `(b, a + f(b))`. Functions F and G in turn give

        y1 = x1 + F(x2),  y2 = x2 + G(y1)

    The backward pass recovers `a` from the output: it subtracts `f(b)` from
    `a + f(b)`. So memory does not grow with the number of functions, except for params
    and states. Recovered values differ from the originals by the rounding of the
    streams; in float64 the difference does not matter to functions in float32.

    Args:
        functions: list of pure functions that take `(x, params, state)`, with x of the
            shape and dtype of the streams, and return a tensor like x and the next
            state. Functions must not read variables.
        first, second: tensors of the same shape and dtype, x1 and x2.
        params: list of nested tensors, one entry for each function.
        state: nested integer tensors that pass from function to function, such as
            seeds. Defaults to `()`.

    Returns:
        `(first, second, state)` after the last function.

    Reference:
        Gomez et al. 2017, RevNet, arXiv 1707.04585; Kitaev et al. 2020, Reformer, arXiv
        2001.04451, equations 7 and 8.

    Example:

    >>> def double(x, scale, state):
    ...     return scale * x, state
    >>> first, second, _ = reversible_chain(
    ...     [double, double], tf.constant(1.0), tf.constant(2.0), [2.0, 2.0])
    >>> float(first), float(second)
    (5.0, 12.0)
    """
    params = [tf.nest.map_structure(tf.convert_to_tensor, given) for given in params]
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    if len(functions) != len(params):
        raise ValueError(
            "params must have an entry for each function. Received: "
            f"{len(functions)} functions and {len(params)} params"
        )

    @custom_gradient
    def chain(first, second, *flat):
        given = tf.nest.pack_sequence_as(params, flat)
        # so that an outer tape records nothing of this computation
        a, b, fixed = tf.nest.map_structure(tf.stop_gradient, (first, second, given))
        carried, states = state, []
        for function, own in zip(functions, fixed):
            states.append(carried)
            change, carried = function(b, own, carried)
            a, b = b, a + change

        def gradient(da, db, *_):
            ends, dparams, gradients = (a, b, da, db), [], []
            for step in zip(reversed(functions), reversed(given), reversed(states)):
                *ends, dparams = _backward(*step, *ends, dparams)
                gradients = dparams + gradients
            return [*ends[2:], *gradients]

        return (a, b, *tf.nest.flatten(carried)), gradient

    first, second, *carried = chain(first, second, *tf.nest.flatten(params))
    return first, second, tf.nest.pack_sequence_as(state, carried)


def _backward(function, params, state, b, total, db, dtotal, earlier):
    """Returns `a, b, da, db, dparams`, from `(b, a + f(b))` and its gradients.

    `dparams` is a flat list with `None` for integers. `earlier`, the `dparams` of the
    next function, must be computed first.
    """
    b, flat = _after([dtotal, *earlier], b), tf.nest.flatten(params)
    floats = [x for x in flat if x.dtype.is_floating]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([b, floats])
        change, _ = function(b, params, state)
    dx, *found = tape.gradient(
        change,
        [b, *floats],
        output_gradients=dtotal,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    found = iter(found)
    dparams = [next(found) if x.dtype.is_floating else None for x in flat]
    return total - change, b, dtotal, db + dx, dparams


def _after(earlier, x):
    """Returns x, but not before the tensors in `earlier` (or `None`) are computed.

    Without this dependency a graph would recompute everything at once and hold it until
    gradients arrive. XLA would keep the first results instead of recomputing them, or
    postpone gradients of params and hold their inputs.
    """
    for one in earlier:
        if one is not None:
            # XLA cannot remove a 0 that may be NaN, nor compute part of this sum alone
            total = tf.reduce_sum(one)
            nothing = tf.where(total == total, tf.zeros_like(total), total)
            x += tf.cast(nothing, x.dtype)
    return x


@keras.saving.register_keras_serializable(package="keras_performer")
class ReversibleBlock(KeepsInnerChanges, keras.layers.Layer):
    """Reversible Transformer blocks on two streams, to save memory in training.

    Both streams start as the input. A block adds the attention of the second stream to
    the first, and then the feed-forward network of the first to the second. Each part
    normalizes its input:

        y1 = x1 + attention(x2),  y2 = x2 + feed_forward(y1)

    The output is the average of both streams after the last block. Training keeps only
    these two streams, for any number of blocks: the backward pass computes the inputs
    of a block from its outputs, x2 = y2 - feed_forward(y1) and so on, and runs the
    block again. TensorFlow still keeps the input of each `ReversibleBlock`, so make a
    deep model from one `ReversibleBlock` with many attentions. Under XLA, memory still
    grew by two streams with each block. If you compile your own training loop, compile
    the gradient too, as `fit` does: a tape outside of compiled code can fail.

    Streams are float64, at twice the memory of float32, so that the recovered inputs
    round to exactly the original ones, and dropout and hashes repeat exactly.

    Args:
        attention: an `AttentionLayer` or its config; or a list of them, one for each
            block.
        intermediate_dim: int, width of the feed-forward networks.
        dropout: float, dropout rate after each part. Defaults to `0.0`.
        seed: int, seeds dropout. Defaults to `None`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: tensor of shape `(B, T, dim)`.
        mask, training, segment_ids, positions: as in `PerformerBlock`.

    Returns:
        Tensor of shape `(B, T, dim)`.

    Raises:
        ValueError: if an attention does not support an argument, and for layers that
            add losses or update non-trainable weights.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, section 3, equations 8 and 9.
        Streams begin and end as in the authors' code.

    Example:

    >>> from keras_performer.layers import PerformerAttention
    >>> attention = [PerformerAttention(num_heads=2, key_dim=8) for _ in range(3)]
    >>> block = ReversibleBlock(attention, intermediate_dim=64)
    >>> block(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    def __init__(
        self,
        attention: AttentionLayer | dict | Sequence[AttentionLayer | dict],
        intermediate_dim: int,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**arguments.of_keras(self, kwargs))
        self.supports_masking = True
        is_list = isinstance(attention, (list, tuple))
        attentions = [
            as_layer("attention", one, AttentionLayer)
            for one in (attention if is_list else [attention])
        ]
        wanted = "an AttentionLayer or the config of one, or a list of at least one of "
        arguments.checked("attention", attention, bool(attentions), wanted + "these")
        if len({id(one) for one in attentions}) < len(attentions):
            raise ValueError(
                "attention must have a separate layer for each block, with its own "
                f"weights: [make() for _ in range({len(attentions)})] rather than "
                f"[layer] * {len(attentions)}. Received: the same layer more than once"
            )
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)
        self.dropout = arguments.rate("dropout", dropout)
        self.seed = arguments.seed(seed)
        seeds = random.Random(self.seed)
        self.blocks = [
            PerformerBlock(
                one,
                self.intermediate_dim,
                self.dropout,
                None if seed is None else seeds.randrange(MAX_SEED),
                dtype=self.dtype_policy,
                name=f"block_{index}",
            )
            for index, one in enumerate(attentions)
        ]

    def build(self, input_shape):
        self.input_spec = keras.layers.InputSpec(axes={-1: input_shape[-1]})
        for block in self.blocks:
            block.build(input_shape)

    def call(
        self,
        x: LayerInput,
        mask: LayerInput | None = None,
        training: bool | None = None,
        segment_ids: LayerInput | None = None,
        positions: LayerInput | None = None,
    ) -> typing.Any:
        if mask is None:
            mask = implicit_mask(x)
        call = dict(query_mask=mask, training=training)
        call |= dict(segment_ids=segment_ids, positions=positions)
        *_, seeds = split_variables(self.variables, self.weights)
        parts = [x for block in self.blocks for x in self._parts(block, call, seeds)]
        functions, trained = zip(*parts)
        stream, params = tf.cast(x, "float64"), [values_of(own) for own in trained]
        first, second, moved = reversible_chain(
            functions, stream, stream, params, values_of(seeds)
        )
        for seed, value in zip(seeds, moved):
            seed.assign(value)
        return tf.cast(0.5 * (first + second), self.compute_dtype)

    if typing.TYPE_CHECKING:  # Keras' own signature takes any arguments
        __call__ = call

    def _parts(self, block, call, seeds):
        """Two pairs for `reversible_chain`, each a function and its trainable weights.

        `call` holds arguments of the attention, `seeds` seed variables of all blocks.
        """

        def attend(x):
            attended = block.attention(block.attention_norm(x), **call)
            return block.dropout(attended, training=call["training"])

        def transform(x):
            return block.transformed(x, call["training"])

        attending = [block.attention_norm, block.attention, block.dropout]
        network = [block.feedforward_norm, block.expand, block.contract, block.dropout]
        pairs = (attend, attending), (transform, network)
        return [self._part(*pair, seeds) for pair in pairs]

    def _part(self, call, layers, seeds):
        variables = [v for layer in layers for v in layer.variables]
        trained, fixed, _ = split_variables(variables, self.weights)
        constants = [*zip(fixed, values_of(fixed))]

        def function(x, params, state):
            values = [*zip(trained, params), *constants, *zip(seeds, state)]
            given = tf.cast(x, self.compute_dtype)
            advice = "In a ReversibleBlock", "PerformerBlock"
            result, moved = call_with_values(lambda: call(given), values, seeds, advice)
            return tf.cast(result, x.dtype), moved

        return owned_by(self, function), trained

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "attention": [config_of(block.attention) for block in self.blocks],
        }
