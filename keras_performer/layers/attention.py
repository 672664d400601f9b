"""The base class of all attention layers: the part that all mechanisms share."""

import inspect
import math
import operator
import typing
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments, call_inputs, config, dense
from keras_performer.layers import state as layer_state
from keras_performer.layers.arguments import LayerInput, positive_int
from keras_performer.layers.call_inputs import Inputs, as_mask
from keras_performer.layers.keras_privates import implicit_mask, in_symbolic_scope
from keras_performer.ops.shapes import compute_dtype, size
from keras_performer.ops.slices import current_slices


class AttentionLayer(
    arguments.JoinsSignatures,
    layer_state.HasInitialState,
    config.KeepsInnerChanges,
    config.KeepsWithoutEntry,
    keras.layers.Layer,
):
    """Base class of attention layers that are called like `MultiHeadAttention`.

    This class implements all parts of `keras.layers.MultiHeadAttention` that do not
    depend on how attention is computed: arguments, dense layers and their names, masks,
    positions, states, output and config. A subclass implements one mechanism by
    defining

        attend(query, key, value, visible, state=None, training=None)

    with query `(B, T, N, H)`, key `(B, S, K, H)` and value `(B, S, K, V)`, where N is a
    multiple of K; `visible` is the `ops.Visibility` of the keys. `attend` returns the
    attended values `(B, T, N, V)`, 0 where a query sees no key, and the entry
    `"attention"` of the state, or `None`. Optional methods:

    - `scores(query, key, visible)` returns the weights `(B, N, T, S)`; by default
      `attend` computes them, from one-hot values;
    - `empty_state(batch_size)` returns nested tensors with the batch first;
    - `attend_slice(slices, query, key, value, visible)` returns the attended values of
      the slice of this replica; `slices` is an `ops.slices.Slices`;
    - `build_attention()` creates the weights of the mechanism.

    Keep a new argument of `__init__` as an attribute of the same name, or add it to
    `get_config`. Register the class with `keras.saving.register_keras_serializable`.

    Class attributes describe the mechanism:

    - `supports_causal` and `supports_state`;
    - `supports_segments`: `attend` hides other segments, by `visible.matrix` or
      `visible.starts`;
    - `supports_cross_attention`: keys may come from another sequence;
    - `drops_weights`: `attend` applies dropout to weights, so `write` must not apply it
      to attended values;
    - `cost`: how time and memory grow with the length L, such as "L" or "L^2";
    - `projections`: the inputs ("query", "key", "value") that have a dense layer;
      `attend` gets `None` for the others;
    - `shared_query_key`: queries are also the keys, and there is no dense layer for
      "key".

    Weights of `keras.layers.MultiHeadAttention` are loaded as in `PerformerAttention`;
    weights that only this mechanism has keep their values. To load weights of this
    package into `MultiHeadAttention`, use `set_weights`. `load_weights` works only if
    the attention layer is an attribute of your own model class, not in functional and
    Sequential models.

    `PerformerAttention` describes all arguments, call arguments and returned values.
    Two arguments differ. `ExactAttention`, `LinformerAttention` and
    `SynthesizerAttention` apply `dropout` to weights, as `MultiHeadAttention` does. The
    scale of `qk_norm` starts at 16, but at 4 in `LinearTransformerAttention`.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`. All
            other arguments are as in `PerformerAttention`.

    Raises:
        ValueError: if a mask differs by query, if T != S in causal or rotary attention,
            or if the mechanism does not support an argument.

    Example:

    A mechanism with sigmoids as weights, for K = N:

    >>> class SigmoidAttention(AttentionLayer):
    ...     def attend(self, query, key, value, visible, state=None, training=None):
    ...         seen = visible.matrix(tf.shape(query)[1], tf.shape(key)[1])
    ...         weights = tf.sigmoid(tf.einsum("btnh,bsnh->bnts", query, key))
    ...         weights *= tf.cast(seen[:, tf.newaxis], weights.dtype)
    ...         return tf.einsum("bnts,bsnv->btnv", weights, value), None
    >>> layer = SigmoidAttention(num_heads=2, key_dim=8)
    >>> layer(keras.ops.ones((1, 3, 16)), keras.ops.ones((1, 5, 16))).shape
    TensorShape([1, 3, 16])
    >>> layer(keras.Input((None, 16))).shape
    (None, None, 16)
    """

    projections: tuple[str, ...] = ("query", "key", "value")
    shared_query_key = False
    supports_causal = True
    supports_state = False
    supports_segments = False
    supports_cross_attention = True
    drops_weights = False
    cost = "L^2"
    # Initial scale of the logits with `qk_norm`.
    initial_logit_scale: float = 16.0
    # Same names as in `keras.layers.MultiHeadAttention`.
    query_dense = property(operator.attrgetter("_query_dense"))
    key_dense = property(operator.attrgetter("_key_dense"))
    value_dense = property(operator.attrgetter("_value_dense"))
    output_dense = property(operator.attrgetter("_output_dense"))

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        *,
        kernel_initializer: arguments.Initializer = "glorot_uniform",
        bias_initializer: arguments.Initializer = "zeros",
        kernel_regularizer: arguments.Regularizer = None,
        bias_regularizer: arguments.Regularizer = None,
        activity_regularizer: arguments.Regularizer = None,
        kernel_constraint: arguments.Constraint = None,
        bias_constraint: arguments.Constraint = None,
        seed: int | None = None,
        causal: bool = False,
        num_key_value_heads: int | None = None,
        rotary: bool | Sequence[int] | None = None,
        qk_norm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        # Without autocast Keras leaves the state in float32; dense layers cast inputs.
        super().__init__(**arguments.of_keras(self, kwargs))
        arguments.check_dtype(self)
        self.supports_masking = True
        self.num_heads = positive_int("num_heads", num_heads)
        self.key_dim = positive_int("key_dim", key_dim)
        self.value_dim = positive_int("value_dim", value_dim, default=self.key_dim)
        self.dropout = arguments.rate("dropout", dropout)
        self.use_bias = arguments.boolean("use_bias", use_bias)
        # An attribute `output_shape` would hide a property that Keras' models read.
        if arguments.among(output_shape, ((), [])):  # Keras treats these as None
            output_shape = None
        self._output_shape = arguments.sizes("output_shape", output_shape)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # for the dense layers; the name without underscore is Keras' own for this layer
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = arguments.seed(seed)
        self.causal = arguments.boolean("causal", causal)
        arguments.check_causal(self, self.causal)
        self.num_key_value_heads = positive_int(
            "num_key_value_heads", num_key_value_heads, default=self.num_heads
        )
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "num_key_value_heads must divide num_heads. Received: "
                f"num_key_value_heads={num_key_value_heads}, num_heads={num_heads}"
            )
        self.rotary = call_inputs.checked_rotary(self, rotary)
        self.qk_norm = arguments.boolean("qk_norm", qk_norm)
        if self.qk_norm and not {"query", "key"} <= set(self.projections):
            raise ValueError(
                f"{type(self).__name__} has no queries and keys to normalize: use "
                "qk_norm=False. Received: qk_norm=True"
            )

    @property
    def can_rotate(self):
        """True if the layer has queries and keys, which `rotary` needs."""
        keys = "query" if self.shared_query_key else "key"
        return {"query", keys} <= set(self.projections)

    @property
    def counts_tokens(self):
        """The name of what counts tokens between query and key, or `None`."""
        return None if self.supports_cross_attention else type(self).__name__

    @property
    def two_pass_methods(self):
        """Names of methods for bidirectional attention in two passes over pieces.

        One for each pass; `()` if the mechanism has none.
        """
        names = "absorb", "answer"
        return names if all(hasattr(self, name) for name in names) else ()

    def cross_config(self):
        """Returns the config of this layer for cross-attention.

        Rotary positions are off: a query has no position among the keys.
        """
        if not self.supports_cross_attention:
            raise ValueError(
                f"{type(self).__name__} has no cross-attention, because its keys must "
                "have the positions of its queries: use another attention for an "
                "encoder's sequence, such as PerformerAttention or ExactAttention. "
                f"Received: attention={self.name!r}"
            )
        return {**self.get_config(), "rotary": None}

    def build(self, query_shape, value_shape=None, key_shape=None):
        shapes = call_inputs.complete_shapes(query_shape, value_shape, key_shape)
        made = dense.dense_layers(self, *shapes)
        for name in self.projections:
            setattr(self, f"_{name}_dense", made[name])
        self._output_dense = made["attention_output"]
        # Autocast would round float32 attention weights to the compute dtype.
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

    if typing.TYPE_CHECKING:  # Keras types its own `__call__` as taking anything
        __call__ = call

    def respond(self, inputs, with_scores, training, positions, state, with_state):
        """Returns the output of `call` from the inputs that `read` returned."""
        if state is not None or with_state:
            layer_state.check(self, inputs, state, with_state, with_scores)
        slices = current_slices()
        if slices is not None:
            layer_state.check_no_state(self, state, with_state, with_scores)
        inputs = call_inputs.with_starts(inputs, state, slices)
        pair = inputs.query, inputs.key
        positions = call_inputs.token_positions(self, *pair, positions, state, slices)
        q = self.project("query", inputs.query, positions)
        k = self.project("key", inputs.key, positions)
        v = self.project("value", inputs.value)
        given, decays = (q, k, v, inputs.visible), self.decays(inputs)
        if slices is None:
            earlier = None if state is None else state["attention"]
            attended, later = attention_of(self)(*given, earlier, training, **decays)
        else:
            attended = sliced_attention_of(self)(slices, *given, **decays)
        output = self.write(attended, inputs.query_mask, training)
        if not (with_scores or with_state):
            return output
        outputs = [output]
        if with_scores:
            scores = self.scores(q, k, inputs.visible, **decays)
            if inputs.query_mask is not None:
                rows = tf.cast(inputs.query_mask, scores.dtype)
                scores *= rows[:, tf.newaxis, :, tf.newaxis]
            outputs.append(scores)
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
        """Checks the inputs of a call, joins all masks and returns `Inputs`."""
        causal = self.causal or use_causal_mask
        if use_causal_mask:
            arguments.check_causal(self, causal)
        if query_mask is None:
            query_mask = implicit_mask(query)
        if value is None:
            value, value_mask = query, query_mask if value_mask is None else value_mask
        key = value if key is None else key
        call_inputs.check_inputs(query=query, value=value, key=key)
        query_mask = as_mask("query_mask", query_mask, query)
        visible = call_inputs.visible_keys(key, value_mask, key_mask, attention_mask)
        call_inputs.check_lengths(query, key, value, causal, self.counts_tokens)
        segment_ids = call_inputs.token_ids(self, segment_ids, query, key)
        visible = ops.Visibility(visible, causal)
        return Inputs(query, key, value, query_mask, visible, segment_ids)

    def project(self, name, x, positions=None):
        """Returns the heads of an input, `(B, length, heads, dim)`.

        Queries and keys are normalized with `qk_norm` and rotated with `rotary`. The
        result is `None` if the input has no dense layer.

        `name` is "query", "key" or "value", or has one of these as its prefix, such as
        "key_global", for an extra dense layer of a mechanism. `positions` are ints `(B,
        length)`, or `(B, length, axes)` in a grid, and required with `rotary`.
        """
        if name.split("_")[0] not in self.projections:
            return None
        # a copy without Keras' mask, which the dense layer would warn about
        heads = getattr(self, f"_{name}_dense")(tf.identity(x))
        if name.startswith("value"):
            return heads
        if self.qk_norm:
            heads = self.query_key_norm.normalize(heads)
        if self.rotary is None:
            return heads
        return call_inputs.apply_rotary(self, heads, positions)

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
        """Returns the output of the layer from attended values `(B, T, N, V)`."""
        if query_mask is not None:
            kept = tf.cast(query_mask, attended.dtype)
            # LiteRT supports neither two tf.newaxis at once, nor tf.newaxis of bools.
            attended *= tf.expand_dims(tf.expand_dims(kept, -1), -1)
        if not self.drops_weights:
            attended = self._dropout_layer(attended, training=training)
        return self._output_dense(attended)

    def scores(
        self,
        query: tf.Tensor,
        key: tf.Tensor | None,
        visible: ops.Visibility,
        **decays: tf.Tensor,
    ) -> tf.Tensor:
        x = query if key is None else key
        if x is None:
            raise ValueError(
                f"{type(self).__name__} has no attention scores, because it has no "
                "queries: call it with return_attention_scores=False. Received: "
                "return_attention_scores=True"
            )
        # the attended one-hot values are the weights of the keys
        length = size(x, 1)
        values = tf.eye(length, dtype=x.dtype)[:, tf.newaxis]
        shape = size(x, 0), length, self.num_key_value_heads, length
        values = tf.broadcast_to(values, shape)
        attended, _ = self.attend(query, key, values, visible, **decays)
        return tf.transpose(attended, (0, 2, 1, 3))

    def decays(self, inputs: Inputs) -> dict[str, tf.Tensor]:
        """Returns extra arguments of `attend` and `scores`: `decay`, with a gate."""
        return {}

    def build_attention(self) -> None:
        """Creates the weights of a mechanism that are not in the dense layers."""

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
        if not self.supports_state:
            raise layer_state.no_state(self)
        batch_size = arguments.batch_size(batch_size)
        position = tf.zeros((batch_size,), tf.int32)
        state = {"position": position, "attention": self.empty_state(batch_size)}
        return {**state, "segment": tf.cast(position, tf.int64)} if packed else state

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        call_inputs.complete_shapes(query_shape, value_shape, key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(self, *args, **kwargs):
        # Tracing `call` also raises its errors.
        layer = self
        if not self.built:
            # It stays unbuilt. Its copy takes no samples from initializers and seed, so
            # that the layer itself later samples the same weights.
            quiet = {"kernel_initializer": "zeros", "bias_initializer": "zeros"}
            made_of = {**self.get_config(), **quiet, "seed": 0}
            layer = type(self).from_config(config.without_inner_changes(made_of))
            given = inspect.signature(self.call).bind(*args, **kwargs).arguments
            inputs = [given.get(name) for name in ("query", "value", "key")]
            layer.build(*(None if x is None else x.shape for x in inputs))
        return keras.Operation.compute_output_spec(layer, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "output_shape": self._output_shape,
            "activity_regularizer": keras.regularizers.serialize(
                self._activity_regularizer
            ),
        }


# -- Normalized queries and keys, with a trained scale of their logits.


# Vectors shorter than the square root of this number do not reach unit length.
SMALLEST_SQUARE = 1e-6


class QueryKeyNorm(config.KeepsWithoutEntry, keras.layers.Layer):
    """Normalizes queries and keys so that their logit is `scale * cos(query, key)`.

    Each of the `num_heads` key-value heads has its own scale.
    """

    warns_without_entry = True

    def __init__(self, num_heads, head_dim, initial_scale):
        super().__init__(name="query_key_norm", dtype="float32")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.initial_scale = initial_scale

    def build(self, input_shape=None):
        first = keras.initializers.Constant(math.log(self.initial_scale))
        self.log_scale = dense.full_weight(self, "log_scale", (self.num_heads,), first)

    def normalize(self, x):
        """Returns queries or keys `(..., N, H)` of length H^(1/4) * sqrt(scale)."""
        # so that q . k / sqrt(H) is scale * cos(q, k)
        length = self.head_dim**0.25 * tf.exp(tf.convert_to_tensor(self.log_scale) / 2)
        length = tf.repeat(length, x.shape[-2] // self.num_heads)[:, tf.newaxis]
        wide = tf.cast(x, compute_dtype(x))
        unit = tf.math.l2_normalize(wide, -1, epsilon=SMALLEST_SQUARE)
        return tf.cast(unit * tf.cast(length, wide.dtype), x.dtype)


# -- Forget gate: each token between a query and a key reduces the weight of the key.


# Initial biases of the first and of the last head.
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
    `PerformerAttention` describes the arguments.

    Reference:
        Lin et al. 2025, Forgetting Transformer, arXiv 2503.02130, equations 4 to 6.
        With random features only, this is the gate g of Random Feature Attention,
        arXiv 2103.02143, section 3.2, without the factor 1 - g of new keys.
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
        heads = self.num_key_value_heads
        self.forget_gate_bias = arguments.floats(
            "forget_gate_bias",
            forget_gate_bias,
            (2, heads),
            "two finite floats, biases of the first and of the last head, or one for "
            f"each of the {heads} key-value heads",
        )
        if self.forget_gate_bias != BIASES and not self.forget_gate:
            raise ValueError(
                "forget_gate_bias needs a forget gate: give forget_gate=True as well. "
                f"Received: forget_gate_bias={forget_gate_bias!r}, forget_gate=False"
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
            # When Keras infers shapes, it makes a separate tensor for each argument.
            others = not key.shape.is_compatible_with(query.shape)
        if others:
            raise ValueError(
                "forget_gate=True needs self-attention, because each token between a "
                "query and a key reduces the weight of the key: call the layer with "
                "the query only, or pass the same tensor as query, value and key (an "
                "array becomes a new tensor for each argument). Received: another "
                "tensor as value or key"
            )
        # a copy without Keras' mask, which the gate would warn about
        return {
            "decay": self.forget_gate_layer(tf.identity(key), inputs.visible.key_mask)
        }

    def cross_config(self):
        without = {"forget_gate": False, "forget_gate_bias": BIASES}
        return {**super().cross_config(), **without}

    @property
    def two_pass_methods(self):
        return () if self.forget_gate else super().two_pass_methods


class ForgetGate(config.KeepsWithoutEntry, keras.layers.Layer):
    """Computes log-decays of tokens, at most 0, one for each key-value head."""

    warns_without_entry = True

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
            # A single head takes the last bias, so that it does not forget at once.
            first = np.linspace(*first[::-1], self.num_heads)[::-1]
        self.bias = self.add_weight(
            name="bias",
            shape=(self.num_heads,),
            initializer=lambda shape, dtype: tf.constant(first, dtype),
        )

    def call(self, x, key_mask=None):
        """Returns log-decays `(B, T, K)` of tokens `(B, T, dim)`."""
        dtype = compute_dtype(x)
        x, kernel, bias = (
            tf.cast(tf.convert_to_tensor(z), dtype) for z in (x, self.kernel, self.bias)
        )
        decays = tf.math.log_sigmoid(tf.tensordot(x, kernel, 1) + bias)
        if key_mask is None:
            return decays
        seen = tf.expand_dims(key_mask, -1)
        return tf.where(seen, decays, tf.zeros_like(decays))


def _defined_with_attend(layer, name):
    """Returns a layer's method `name`, or `None` if a subclass overrides `attend` only.

    The inherited method would not match the new `attend`.
    """
    defined = (vars(kind) for kind in type(layer).__mro__)
    names = next(names for names in defined if "attend" in names)
    return getattr(layer, name) if name in names else None


def attention_of(layer):
    """Returns a layer's `attend`, or its `outline` if Keras only infers shapes.

    Keras infers shapes in symbolic calls, and when it traces a model before training
    under a `tf.distribute` strategy. An `outline` takes the arguments of `attend`; its
    results have the same shapes and dtypes, from a smaller graph.
    """
    if tf.executing_eagerly() or not in_symbolic_scope():
        return layer.attend
    return _defined_with_attend(layer, "outline") or layer.attend


def sliced_attention_of(layer):
    """Returns a layer's `attend_slice`, or raises an error if it has none."""
    attend_slice = _defined_with_attend(layer, "attend_slice")
    if attend_slice is None:
        raise ValueError(
            f"{type(layer).__name__} needs the whole sequence on one device: with "
            "sequence_parallel use PerformerAttention, LinearTransformerAttention or "
            f"LocalAttention. Received: layer={layer.name!r}"
        )
    return attend_slice
