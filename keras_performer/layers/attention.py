"""The base class of all attention layers: the part that all mechanisms share."""

import inspect
import math
import typing
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments, call_inputs
from keras_performer.layers import state as layer_state
from keras_performer.layers.arguments import (
    Constraint,
    Initializer,
    LayerInput,
    Regularizer,
)
from keras_performer.layers.call_inputs import (
    Inputs,
    apply_rotary,
    as_mask,
    checked_rotary,
    token_positions,
    visible_keys,
)
from keras_performer.layers.config import (
    KeepsInnerChanges,
    KeepsWithoutEntry,
    built_copy,
)
from keras_performer.layers.dense import DenseNames, dense_layers, serialized_options
from keras_performer.layers.keras_privates import implicit_mask, in_symbolic_scope
from keras_performer.ops.shapes import compute_dtype


class AttentionLayer(
    arguments.JoinsSignatures,
    layer_state.HasInitialState,
    DenseNames,
    KeepsInnerChanges,
    KeepsWithoutEntry,
    keras.layers.Layer,
):
    """Base class of attention layers with the interface of Keras' own.

    It has everything in `keras.layers.MultiHeadAttention` that does not depend on how
    attention is computed: arguments, dense layers and their names, masks, positions,
    states, output and config. A subclass implements one mechanism, by defining

        attend(query, key, value, visible, state=None, training=None)

    with query `(B, T, N, H)`, key `(B, S, K, H)` and value `(B, S, K, V)`, where N is a
    multiple of K; `visible` is the `ops.Visibility` of the keys. It returns the
    attended values `(B, T, N, V)`, 0 where a query sees no key, and the entry
    `"attention"` of the state, or `None`. Optional methods:

    - `scores(query, key, visible)` returns the weights `(B, N, T, S)`;
    - `empty_state(batch_size)` returns nested tensors with the batch first;
    - `build_attention()` makes weights of the mechanism.

    A new argument goes into `__init__` and `get_config`. Register the class with
    `keras.saving.register_keras_serializable`.

    Class attributes say what a mechanism can do:

    - `supports_causal` and `supports_state`;
    - `supports_segments`: `attend` uses `visible.starts`;
    - `supports_cross_attention`: keys may come from another sequence;
    - `drops_weights`: `attend` applies dropout to weights, so `write` must not apply it
      to attended values;
    - `cost`: how time and memory grow with the length L, such as "L" or "L^2";
    - `projections`: the inputs ("query", "key", "value") that have a dense layer;
      `attend` gets `None` for the others;
    - `shared_query_key`: queries are also the keys, and there is no dense layer for
      "key".

    To load the weights of a model with `keras.layers.MultiHeadAttention`, swap all its
    attention layers, keep their names and call `load_weights`; weights that only the
    mechanism has keep their values. In the other direction Keras finds attention layers
    only as attributes, not in functional and Sequential models: use `set_weights`
    there.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        value_dim: int V, size of each head of value. Defaults to `key_dim`.
        dropout: float, dropout rate. `ExactAttention`, `LinformerAttention` and
            `SynthesizerAttention` drop weights, as `MultiHeadAttention` does. All
            others have no attention matrix and drop attended values, before the output
            projection. Defaults to `0.0`.
        use_bias: bool, whether the dense layers use bias vectors. Defaults to `True`.
        output_shape: int or tuple, the shape of the output besides batch and sequence.
            Defaults to the last dimension of the query.
        kernel_initializer: initializer of the dense layers' kernels. Defaults to
            `"glorot_uniform"`.
        bias_initializer: initializer of the dense layers' biases. Defaults to
            `"zeros"`.
        kernel_regularizer: regularizer of the dense layers' kernels. Defaults to
            `None`.
        bias_regularizer: regularizer of the dense layers' biases. Defaults to `None`.
        activity_regularizer: regularizer of the dense layers' outputs. Defaults to
            `None`.
        kernel_constraint: constraint of the dense layers' kernels. Defaults to `None`.
        bias_constraint: constraint of the dense layers' biases. Defaults to `None`.
        seed: int, seeds dropout and the random numbers of the mechanism. Defaults to
            `None`.
        causal: bool, hide later tokens. Defaults to `False`.
        num_key_value_heads: int K, number of heads of key and value (grouped-query
            attention). It must divide `num_heads`; each is shared by `num_heads / K`
            query heads. Defaults to `num_heads`.
        rotary: `True` to rotate queries and keys by their positions
            (`ops.rotary_embedding`). For images and other grids, a tuple of ints: the
            shape of the grid, whose tokens run row by row. Each axis rotates an equal
            part of the head, so `key_dim` must be divisible by twice the number of
            axes. Defaults to `None`, no positions.
        qk_norm: bool, divide queries and keys by their norms, so that the logit is
            `scale * cos(query, key)`. Each key-value head learns its scale; the
            logarithm is the weight `query_key_norm.log_scale`. Defaults to `False`.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        query: tensor of shape `(B, T, dim)`.
        value: tensor of shape `(B, S, dim)`. Defaults to `query` (self-attention).
        key: tensor of shape `(B, S, dim)`. Defaults to `value`.
        query_mask: bool tensor of shape `(B, T)`, false for padding. Masked queries
            attend to nothing. In self-attention (`value=None`) it also hides these
            tokens as keys. Defaults to Keras' implicit mask.
        value_mask, key_mask: bool tensors of shape `(B, S)`. A key is hidden if either
            is false. Defaults to Keras' implicit masks.
        attention_mask: bool tensor of shape `(B, 1, S)` or `(B, 1, 1, S)`, true for
            keys that may be seen. All queries must have the same mask: a `(T, S)` or
            `(B, T, S)` mask raises an error. For causal attention use `causal` or
            `use_causal_mask`. Defaults to `None`, all keys.
        return_attention_scores: bool, also return the attention matrix `(B, N, T, S)`.
            Its cost is quadratic: use it to look at short sequences. Defaults to
            `False`.
        training: bool, whether to apply dropout. Defaults to Keras' training mode.
        use_causal_mask: bool, hide later tokens in this call, as `causal=True` does in
            all calls. Defaults to `False`.
        segment_ids: int tensor of shape `(B, T)`, for rows that pack several sequences
            (self-attention only). A token sees its own segment only, which is a run of
            equal ids: an id that returns after another starts a new segment. Rotary
            positions count along the whole row unless you give `positions`. Defaults to
            `None`, one segment.
        positions: int tensor of shape `(B, T)`, positions for `rotary`, below 2**31;
            for a grid also `(B, T, axes)`, the coordinates. They apply to queries and
            keys. Defaults to 0, 1, ..., or with a state to the positions that follow
            it. Positions that you give are never shifted by the state.
        state: the state after earlier tokens (causal only), from `get_initial_state`
            or an earlier call. Defaults to `None`, no earlier tokens.
        return_state: bool, also return the state after the last token. Defaults to
            `False`.

    Returns:
        Tensor of shape `(B, T, output_shape)`, followed by the scores and the state if
        you asked for them. Where a query sees no key, the attended values are 0.

    Raises:
        ValueError: if a mask differs by query, if T != S in causal or rotary attention,
            or if the mechanism does not support an argument.

    Example:

    A mechanism with equal weights for all visible keys:

    >>> class MeanAttention(AttentionLayer):
    ...     projections = ("value",)
    ...     supports_causal = False
    ...     def attend(self, query, key, value, visible, state=None, training=None):
    ...         seen = tf.cast(visible.matrix(1, value.shape[1]), value.dtype)
    ...         seen /= tf.maximum(tf.reduce_sum(seen, -1, keepdims=True), 1)
    ...         mean = tf.einsum("bts,bskv->btkv", seen, value)
    ...         return tf.repeat(mean, value.shape[1], axis=1), None
    >>> MeanAttention(num_heads=2, key_dim=8)(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    projections: tuple[str, ...] = ("query", "key", "value")
    shared_query_key = False
    supports_causal = True
    supports_state = False
    supports_segments = False
    supports_cross_attention = True
    drops_weights = False
    cost = "L^2"
    # The scale of logits that `qk_norm` begins with.
    initial_logit_scale: float = 16.0

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        seed: int | None = None,
        causal: bool = False,
        num_key_value_heads: int | None = None,
        rotary: bool | Sequence[int] | None = None,
        qk_norm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        # Without autocast Keras leaves the state in float32; the dense layers cast.
        super().__init__(**arguments.of_keras(self, kwargs))
        arguments.check_dtype(self)
        self.supports_masking = True
        positive_int = arguments.positive_int
        self.num_heads = positive_int("num_heads", num_heads)
        self.key_dim = positive_int("key_dim", key_dim)
        self.value_dim = positive_int("value_dim", value_dim, default=self.key_dim)
        self.dropout = arguments.rate("dropout", dropout)
        self.use_bias = arguments.boolean("use_bias", use_bias)
        # `output_shape` itself would hide a property that Keras' models read.
        self._output_shape = arguments.output_shape(output_shape)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # the dense layers' regularizer; `activity_regularizer` would be this layer's
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = arguments.seed(seed)
        self.causal = arguments.boolean("causal", causal)
        arguments.check_causal(self, self.causal)
        self.num_key_value_heads = arguments.key_value_heads(
            num_key_value_heads, self.num_heads
        )
        self.rotary = checked_rotary(self, rotary)
        self.qk_norm = check_qk_norm(self, qk_norm)

    @property
    def can_rotate(self):
        """True if the layer has queries and keys, which `rotary` needs."""
        keys = "query" if self.shared_query_key else "key"
        return {"query", keys} <= set(self.projections)

    @property
    def in_two_passes(self):
        """True if bidirectional attention can be computed in two passes over pieces."""
        return hasattr(self, "absorb") and hasattr(self, "answer")

    def cross_config(self):
        """Returns the config of the same attention to another sequence.

        It has no rotary positions: a query has no place among the keys.
        """
        if not self.supports_cross_attention:
            raise ValueError(
                f"{type(self).__name__} attends to its own sequence alone, where keys "
                "and queries have the same positions: use PerformerAttention, "
                "ExactAttention or another for an encoder's sequence. Received: "
                f"attention={self.name!r}"
            )
        return {**self.get_config(), "rotary": None}

    def build(self, query_shape, value_shape=None, key_shape=None):
        shapes = call_inputs.complete_shapes(query_shape, value_shape, key_shape)
        dense = dense_layers(self, *shapes)
        for name in self.projections:
            setattr(self, f"_{name}_dense", dense[name])
        self._output_dense = dense["attention_output"]
        # without autocast, which would round weights in float32
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy, autocast=False
        )
        self.query_key_norm = None
        if self.qk_norm:
            sizes = self.num_key_value_heads, self.key_dim
            self.query_key_norm = QueryKeyNorm(*sizes, self.initial_logit_scale)
            self.query_key_norm.build()
        self.build_attention()

    def call(
        self,
        query: LayerInput,
        value: LayerInput | None = None,
        key: LayerInput | None = None,
        query_mask: LayerInput | None = None,
        value_mask: LayerInput | None = None,
        key_mask: LayerInput | None = None,
        attention_mask: LayerInput | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        segment_ids: LayerInput | None = None,
        positions: LayerInput | None = None,
        state: dict[str, typing.Any] | None = None,
        return_state: bool = False,
    ) -> typing.Any:
        masks = query_mask, value_mask, key_mask, attention_mask
        inputs = self.read(query, value, key, *masks, use_causal_mask, segment_ids)
        return self.respond(
            inputs, return_attention_scores, training, positions, state, return_state
        )

    if typing.TYPE_CHECKING:  # what Keras hands to `call`; its own takes anything
        __call__ = call

    def respond(self, inputs, with_scores, training, positions, state, with_state):
        """Returns the output of `call` from the inputs that `read` returned.

        Args:
            inputs: from `read`.
            with_scores, training, positions, state, with_state: as in `call`.
        """
        causal = inputs.visible.causal
        if state is not None or with_state:
            layer_state.check(self, causal, state, with_state, with_scores)
        inputs = call_inputs.with_starts(inputs, state)
        positions = token_positions(self, inputs.query, inputs.key, positions, state)
        q = self.project("query", inputs.query, positions)
        k = self.project("key", inputs.key, positions)
        v = self.project("value", inputs.value)
        earlier = None if state is None else state["attention"]
        attend = attention_of(self)
        decays = self.decays(inputs)
        attended, later = attend(q, k, v, inputs.visible, earlier, training, **decays)
        output = self.write(attended, inputs.query_mask, training)
        if not (with_scores or with_state):
            return output
        outputs = [output]
        if with_scores:
            outputs.append(self._scores(q, k, inputs, decays))
        if with_state:
            outputs.append(layer_state.later(state, inputs, later))
        return tuple(outputs)

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
        """Checks the inputs of a call, and joins all masks.

        Returns:
            `Inputs`.
        """
        causal = self.causal or use_causal_mask
        if use_causal_mask:
            arguments.check_causal(self, causal)
        if query_mask is None:
            query_mask = implicit_mask(query)
        if value is None:
            value, value_mask = query, query_mask if value_mask is None else value_mask
        key = value if key is None else key
        call_inputs.check_inputs(query=query, value=value, key=key)
        visible = visible_keys(key, value_mask, key_mask, attention_mask)
        query_mask = as_mask("query_mask", query_mask, query)
        call_inputs.check_lengths(query, key, causal)
        segment_ids = call_inputs.token_ids(self, segment_ids, query, key)
        visible = ops.Visibility(visible, causal)
        return Inputs(query, key, value, query_mask, visible, segment_ids)

    def project(self, name, x, positions=None):
        """Returns the heads of an input, `(B, length, heads, dim)`.

        Queries and keys are normalized with `qk_norm` and rotated with `rotary`. An
        input without a dense layer gives `None`.

        Args:
            name: "query", "key" or "value"; or a longer name that begins with one of
                them, such as "key_global", for an extra dense layer of a mechanism.
            x: tensor of shape `(B, length, features)`.
            positions: int tensor `(B, length)`, needed to rotate; `(B, length, axes)`
                for coordinates in a grid. Defaults to `None`.
        """
        if name.split("_")[0] not in self.projections:
            return None
        # a copy without Keras' mask, which the dense layer would warn about
        heads = getattr(self, f"_{name}_dense")(tf.identity(x))
        if name.startswith("value"):
            return heads
        if self.qk_norm:
            heads = self.query_key_norm.normalize(heads)
        return heads if self.rotary is None else apply_rotary(self, heads, positions)

    def attend(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        visible: ops.Visibility,
        state: typing.Any = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, typing.Any]:
        raise NotImplementedError(f"{type(self).__name__} must define `attend`.")

    def write(self, attended, query_mask, training=None):
        """Returns the output of the layer from attended values `(B, T, N, V)`.

        Args:
            attended: from `attend`.
            query_mask: as in `Inputs`.
            training: bool, whether to apply dropout. Defaults to `None`.
        """
        if query_mask is not None:
            kept = tf.cast(query_mask, attended.dtype)
            # LiteRT has no tf.newaxis of two axes, and below none of bools
            attended *= tf.expand_dims(tf.expand_dims(kept, -1), -1)
        if not self.drops_weights:
            attended = self._dropout_layer(attended, training=training)
        return self._output_dense(attended)

    def scores(
        self, query: tf.Tensor, key: tf.Tensor, visible: ops.Visibility
    ) -> tf.Tensor:
        raise ValueError(
            f"{type(self).__name__} has no attention scores: call it with "
            "return_attention_scores=False. Received: return_attention_scores=True"
        )

    def decays(self, inputs: Inputs) -> dict[str, tf.Tensor]:
        """Returns further arguments of `attend` and `scores`, as a forget gate has."""
        return {}

    def build_attention(self) -> None:
        """Makes the weights of a mechanism that are not in the dense layers."""

    def empty_state(self, batch_size: int | tf.Tensor) -> typing.Any:
        """Returns the entry `"attention"` of the state before the first token."""
        raise layer_state.no_state(self)

    def get_initial_state(
        self, batch_size: int | tf.Tensor, packed: bool = False
    ) -> dict[str, typing.Any]:
        """Returns the state before the first token.

        Args:
            batch_size: int or scalar tensor B.
            packed: bool, whether you will pass `segment_ids`. Defaults to `False`.

        Returns:
            Dict of `"position"`, an int32 tensor `(B,)` that counts tokens, and
            `"attention"`, nested tensors with the batch first; if packed also
            `"segment"`, the id of the last token, int64 `(B,)`.
        """
        batch_size = layer_state.checked_batch_size(self, batch_size)
        return layer_state.first(self.empty_state(batch_size), batch_size, packed)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        call_inputs.complete_shapes(query_shape, value_shape, key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(self, *args, **kwargs):
        # by tracing `call`, with its errors; a layer that is not built stays so
        layer = self
        if not self.built:
            given = inspect.signature(self.call).bind(*args, **kwargs).arguments
            inputs = [given.get(name) for name in ("query", "value", "key")]
            layer = built_copy(self, [None if x is None else x.shape for x in inputs])
        return keras.Operation.compute_output_spec(layer, *args, **kwargs)

    def get_config(self):
        names = (
            "num_heads",
            "key_dim",
            "value_dim",
            "dropout",
            "use_bias",
            "seed",
            "causal",
            "num_key_value_heads",
            "rotary",
            "qk_norm",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            **serialized_options(self),
            "output_shape": self._output_shape,
            "activity_regularizer": keras.regularizers.serialize(
                self._activity_regularizer
            ),
        }

    def _scores(self, query, key, inputs, decays):
        scores = self.scores(query, key, inputs.visible, **decays)
        if inputs.query_mask is not None:
            rows = tf.cast(inputs.query_mask, scores.dtype)
            scores *= rows[:, tf.newaxis, :, tf.newaxis]
        return scores


# -- Queries and keys of one length, which the model learns.


# Vectors shorter than the root of this keep a part of their length.
SMALLEST_SQUARE = 1e-6


def check_qk_norm(layer, value):
    """The argument `qk_norm` of an attention layer."""
    value = arguments.boolean("qk_norm", value)
    if value and not {"query", "key"} <= set(layer.projections):
        raise ValueError(
            f"{type(layer).__name__} has no queries and keys to normalize: use "
            "qk_norm=False. Received: qk_norm=True"
        )
    return value


class QueryKeyNorm(KeepsWithoutEntry, keras.layers.Layer):
    """Normalizes queries and keys so that their logit is `scale * cos(query, key)`.

    Args:
        num_heads: int K, key-value heads; query heads that share one share its scale.
        head_dim: int H.
        initial_scale: float, the initial scale.
    """

    def __init__(self, num_heads, head_dim, initial_scale):
        super().__init__(name="query_key_norm", dtype="float32")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.initial_scale = initial_scale

    def build(self, input_shape=None):
        self.log_scale = self.add_weight(
            name="log_scale",
            shape=(self.num_heads,),
            initializer=keras.initializers.Constant(math.log(self.initial_scale)),
            autocast=False,
        )

    def normalize(self, x):
        """Queries or keys `(..., N, H)` with half of the logit's scale each."""
        # the logit is q . k / sqrt(H)
        length = self.head_dim**0.25 * tf.exp(tf.convert_to_tensor(self.log_scale) / 2)
        length = tf.repeat(length, x.shape[-2] // self.num_heads)[:, tf.newaxis]
        wide = tf.cast(x, compute_dtype(x))
        unit = tf.math.l2_normalize(wide, -1, epsilon=SMALLEST_SQUARE)
        return tf.cast(unit * tf.cast(length, wide.dtype), x.dtype)


# -- A forget gate: the weight of a key fades with the tokens between it and a query.


# Of the first and of the last head, at first.
BIASES = 2.0, 7.0


class ForgettingAttention(AttentionLayer):
    """The base class of attention layers that can have a forget gate.

    With `forget_gate=True` each token t has a gate for each key-value head n,

        f_t = sigmoid(w_n . x_t + b_n)

    and the weight of key j for query i, exact or estimated, is multiplied by f_(j+1)
    ... f_i; for a later key by f_(i+1) ... f_j. A token that is masked as a key has a
    gate of 1.

    `attend`, `scores` and, if defined, `outline` get the logarithms of the gates as the
    argument `decay`: a float32 tensor `(B, T, K)`, or float64 for float64 inputs.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        forget_gate: bool, whether the layer has a forget gate. It adds the sublayer
            `forget_gate_layer`, with a kernel `(dim, K)` and a bias `(K,)` in float32.
            For self-attention only. Defaults to `False`.
        forget_gate_bias: two floats, the initial biases of the first and of the last
            key-value head; the heads between them are spaced evenly. Or one float for
            each key-value head. A single head takes the last value. At the start a
            weight halves within 6 tokens for a bias of 2, within 760 for 7, and never
            for 20. Defaults to `(2.0, 7.0)`.
        **kwargs: further arguments of `AttentionLayer`, such as `causal`, `dropout` and
            `rotary`.

    Reference:
        Lin et al. 2025, Forgetting Transformer, arXiv 2503.02130, equations 4 to 6.
        With random features only, this is the gate of Random Feature Attention,
        arXiv 2103.02143, section 3.2, without its factor of new keys.
    """

    def __init__(
        self,
        *args: typing.Any,
        forget_gate: bool = False,
        forget_gate_bias: Sequence[float] = BIASES,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.forget_gate = arguments.boolean("forget_gate", forget_gate)
        self.forget_gate_bias = _biases(forget_gate_bias, self.num_key_value_heads)
        if self.forget_gate_bias != BIASES and not self.forget_gate:
            raise ValueError(
                "forget_gate_bias is that of a forget gate: give forget_gate=True as "
                f"well. Received: forget_gate_bias={forget_gate_bias!r}, "
                "forget_gate=False"
            )

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.forget_gate_layer = None
        if self.forget_gate:
            heads = self.num_key_value_heads, self.forget_gate_bias
            self.forget_gate_layer = ForgetGate(*heads)
            self.forget_gate_layer.build(query_shape)

    def decays(self, inputs):
        if not self.forget_gate:
            return {}
        query, key = inputs.query, inputs.key
        others = key is not query or inputs.value is not query
        if others and in_symbolic_scope():
            # Keras makes tensors of their own of equal ones where it asks for shapes
            others = not key.shape.is_compatible_with(query.shape)
        if others:
            raise ValueError(
                "forget_gate=True is for self-attention, as decays add up from token "
                "to token: call the layer with the query alone, or with the very same "
                "tensor as value and key (arrays become a tensor for each argument). "
                "Received: another tensor as value or key"
            )
        # a copy without Keras' mask, which the gate would warn about
        return {
            "decay": self.forget_gate_layer(tf.identity(key), inputs.visible.key_mask)
        }

    def cross_config(self):
        without = {"forget_gate": False, "forget_gate_bias": BIASES}
        return {**super().cross_config(), **without}

    @property
    def in_two_passes(self):
        return super().in_two_passes and not self.forget_gate

    def get_config(self):
        return {
            **super().get_config(),
            "forget_gate": self.forget_gate,
            "forget_gate_bias": self.forget_gate_bias,
        }


class ForgetGate(KeepsWithoutEntry, keras.layers.Layer):
    """Log-decays of tokens, at most 0, one for each key-value head.

    Args:
        num_heads: int K, key-value heads.
        initial_bias: tuple of floats, as `forget_gate_bias`.
    """

    def __init__(self, num_heads, initial_bias):
        super().__init__(name="forget_gate", dtype="float32", autocast=False)
        self.num_heads = num_heads
        self.initial_bias = initial_bias

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], self.num_heads)
        )
        first = self.initial_bias
        if len(first) != self.num_heads:
            # of a single head the last, so that it does not forget at once
            first = np.linspace(*first[::-1], self.num_heads)[::-1]
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
        seen = tf.expand_dims(key_mask, -1)
        return tf.where(seen, decays, tf.zeros_like(decays))


def _biases(biases, num_heads):
    """The argument `forget_gate_bias`, a tuple of two floats or one for each head."""
    found = arguments.without_array(biases)
    several = isinstance(found, (list, tuple)) and len(found) in (2, num_heads)
    if not several or not all(map(arguments.is_finite, found)):
        raise ValueError(
            "forget_gate_bias must be two finite floats, biases of the first and of "
            f"the last head, or one for each of the {num_heads} key-value heads. "
            f"Received: forget_gate_bias={biases!r}"
        )
    return tuple(map(float, found))


# -- Shapes and dtypes of a symbolic call.


def attention_of(layer):
    """Returns the `attend` of a layer, or its `outline` if Keras only asks for shapes.

    Keras does so in symbolic calls, and when it traces a model before training under a
    `tf.distribute` strategy. An `outline` takes the arguments of `attend`, and its
    results have the same shapes and dtypes in a smaller graph.
    """
    if tf.executing_eagerly() or not in_symbolic_scope():
        return layer.attend
    defined = (vars(kind) for kind in type(layer).__mro__)
    # a subclass may define an `attend` of its own, which the outline is not that of
    has_outline = "outline" in next(names for names in defined if "attend" in names)
    return layer.outline if has_outline else layer.attend
