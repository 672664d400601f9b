"""Multi-head attention in time and memory linear in the length."""

import functools
import typing
from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_performer import feature_maps, ops
from keras_performer.layers import arguments, layer_state
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.compile_policy import pays_on_cpu, should_compile
from keras_performer.layers.exact_below import by_length
from keras_performer.layers.far_gain import FarGain
from keras_performer.layers.in_pieces import InPieces
from keras_performer.layers.random_projection import RandomProjection
from keras_performer.layers.signatures import Constraint, Initializer, Regularizer
from keras_performer.layers.unbuilt import must_be_built
from keras_performer.ops.checks import check_window
from keras_performer.ops.linear_attention import linear_attention
from keras_performer.ops.shapes import size, sum_dtype


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerAttention(InPieces, AttentionLayer):
    """FAVOR+ attention that stands where `keras.layers.MultiHeadAttention` stands.

    Queries, keys and values are projected as there; the softmax kernel
    exp(q . k / sqrt(key_dim)) is then estimated by products of positive random
    features, so that time and memory are linear in the length of the sequence.

    `load_weights` takes a file of the same model with `keras.layers.MultiHeadAttention`
    if all attention layers are swapped and keep their names; the random features are
    this layer's own.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        value_dim: int V, size of each head of value. Defaults to `key_dim`.
        dropout: float, dropout rate. The attention matrix does not exist here, so
            dropout falls on the attended values, before the output projection.
        use_bias: bool, whether the dense layers use bias vectors.
        output_shape: int or tuple, the shape of the output besides batch and sequence.
            Defaults to the last dimension of the query.
        attention_axes: int or tuple of ints, the axes that attention runs over.
            Defaults to all but batch and features.
        sliding_window: `None`. It, the next and `use_gate` are refused; they stand here
            so that arguments have the places that Keras 3.15 gives them.
        flash_attention: `None` or `False`.
        kernel_initializer: initializer of the dense layers' kernels.
        bias_initializer: initializer of the dense layers' biases.
        kernel_regularizer: regularizer of the dense layers' kernels.
        bias_regularizer: regularizer of the dense layers' biases.
        activity_regularizer: regularizer of the dense layers' outputs.
        kernel_constraint: constraint of the dense layers' kernels.
        bias_constraint: constraint of the dense layers' biases.
        use_gate: `False`.
        seed: int, seeds the random features and dropout. By default it is drawn when
            the layer is built, and saved with the weights.
        feature_map: "softmax" (default), "favor+", "relu" or another name, object or
            config of `keras_performer.feature_maps.get`.
        num_random_features: int M, counted as features; `None` for no random
            projection, which generalized kernels can do without. "auto" (default) is
            256, as in the paper's experiments, and `None` for feature maps without
            random features, as "taylor" is.
        causal: bool, hide later tokens.
        num_key_value_heads: int K, a divisor of `num_heads`: that many heads of key and
            value, each shared by `num_heads / K` query heads. Defaults to `num_heads`.
        chunk_size: int, the most tokens in a chunk of the causal form, and of a window
            to both sides; it changes speed and rounding only. Defaults to 64, with a
            GPU to 256; of a window to both sides to 32 or 64, as the window is, and
            more for windows above 256.
        exact_below: int, inputs with fewer keys than this take exact softmax attention,
            with the same weights: it is faster there. For feature maps that estimate
            softmax only. A layer with it takes and returns no state, as a state is made
            of features: leave it out to decode token by token. Defaults to never.
        exact_window: int W, keys at less than this distance from a query have their
            exact softmax weight, and only those further off an estimated one. Distance
            is counted in places of the sequence, masked ones included, so that query
            and key must have the same length. For feature maps that estimate softmax
            only. It adds a weight, `log_gain`. Defaults to no window.
        initial_log_gain: float, what the log-weights of keys outside of the window get
            at first, or a list of floats, one for each head. A model that is trained
            from the start learns more with heads that differ, such as (-4, 2, -4, 2):
            near keys count in some, as else many far keys drown them, and the others
            find far keys. Defaults to 0: an estimate of softmax.
        rotary: `True` for rotary positions on a line, or a tuple of ints, the shape of
            a grid that tokens run through row by row: its axes share the head, so that
            `key_dim` must be divisible by 2 for each. Queries and keys are rotated
            before the features are taken (RoFormer, arXiv 2104.09864, equation 34; by
            `ops.rotary_embedding`). Defaults to no positions.
        qk_norm: bool, divide queries and keys by their lengths, so that the logit is
            `scale * cos(query, key)` (arXiv 2010.04245). The scale is a weight of each
            key-value head, at first 4 for positive features and 16 for "taylor", which
            has no noise; its logarithm is the weight `query_key_norm.log_scale`.
        jit_compile: bool, whether XLA compiles the attention alone; it takes seconds
            for each shape, and has no second derivatives. "auto" (default): training,
            on a known length >= 1,024, in a graph without `tf.distribute`, on a GPU or
            by <= 4 CPU threads (there, if causal, from TensorFlow 2.21 on).
        **kwargs: arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        query: tensor of shape `(B, T, dim)`.
        value: tensor of shape `(B, S, dim)`. Defaults to `query` (self-attention).
        key: tensor of shape `(B, S, dim)`. Defaults to `value`.
        query_mask: bool tensor `(B, T)`; rows where it is false see no key. With
            `value=None` it also hides them as keys.
        value_mask, key_mask: bool tensors `(B, S)`; keys where one is false are not
            seen. All three default to Keras' implicit masks.
        attention_mask: bool tensor `(B, 1, S)` or `(B, 1, 1, S)`: which keys are seen.
            It cannot differ by query; rank 2, which is `(T, S)` in Keras, is refused.
        return_attention_scores: bool, also return the implied attention matrix
            `(B, N, T, S)`, for looking at short sequences: its cost is quadratic. With
            `attention_axes`: `(*batch axes, N, *query axes, *key axes)`.
        training: bool, whether to apply dropout.
        use_causal_mask: bool, hide later tokens in this call.
        segment_ids: int tensor `(B, T)`, for self-attention to sequences packed of
            several: a token sees its own segment, a run of equal ids. An id that comes
            back after another is a new segment. Rotary positions go on along the row
            unless `positions` start anew. States then have the last id as their
            entry `"segment"`, from `initial_state(batch_size, packed=True)` on; tokens
            without ids go on with that segment.
        positions: int tensor `(B, T)`, where the tokens are, or for a grid also
            `(B, T, axes)`, their coordinates; below 2**31. With `rotary` only, for
            queries and keys alike. Defaults to 0, 1, ..., or on from where the state
            ends. Given ones are taken as they are, with a state too.
        state: the state after earlier tokens (causal only), a dict from `initial_state`
            or an earlier call. T new tokens cost the same however many came before.
        return_state: bool, also return the state after the last token.

    Returns:
        Tensor of shape `(B, T, output_shape)`; then the scores and the state, if asked
        for. Where no key is visible the attended values are 0.

    Raises:
        ValueError: for a mask that differs by query, causal or rotary attention with
            T != S, a state without causal attention or with `exact_below`.

    Example:

    >>> layer = PerformerAttention(num_heads=2, key_dim=8)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])

    Token by token, at a cost that does not grow:

    >>> layer = PerformerAttention(num_heads=2, key_dim=8, causal=True)
    >>> state = layer.initial_state(batch_size=1)
    >>> y, state = layer(keras.ops.ones((1, 1, 16)), state=state, return_state=True)
    >>> y.shape
    TensorShape([1, 1, 16])

    Reference:
        Choromanski et al. 2020, Rethinking Attention with Performers, arXiv 2009.14794.
    """

    supports_segments = True
    cost = "L"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        feature_map: str | dict | feature_maps.FeatureMap = "softmax",
        num_random_features: int | None | typing.Literal["auto"] = "auto",
        causal: bool = False,
        num_key_value_heads: int | None = None,
        chunk_size: int | None = None,
        exact_below: int | None = None,
        exact_window: int | None = None,
        initial_log_gain: float | Sequence[float] = 0.0,
        rotary: bool | Sequence[int] | None = None,
        qk_norm: bool = False,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim,
            value_dim=value_dim,
            dropout=dropout,
            use_bias=use_bias,
            output_shape=output_shape,
            attention_axes=attention_axes,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
            causal=causal,
            num_key_value_heads=num_key_value_heads,
            rotary=rotary,
            qk_norm=qk_norm,
            **kwargs,
        )
        self.feature_map = feature_maps.get(feature_map)
        self._num_random_features = arguments.positive_int(
            "num_random_features", num_random_features, default=None, auto=True
        )
        self.num_random_features = (
            self.feature_map.default_num_random_features
            if self._num_random_features == "auto"
            else self._num_random_features
        )
        self.feature_map.check(self.num_random_features)
        self.chunk_size = arguments.positive_int("chunk_size", chunk_size, default=None)
        self.exact_below = arguments.exact_below(exact_below, self.feature_map)
        self.exact_window = arguments.exact_window(exact_window, self.feature_map)
        self.initial_log_gain = arguments.initial_log_gain(
            initial_log_gain, self.exact_window, self.num_heads
        )
        self.jit_compile = arguments.jit_compile(jit_compile, self.feature_map)
        self._random_projection = None  # until built, and where there is none
        self._far_gain = None

    def build_attention(self):
        if self.num_random_features is not None:
            self._random_projection = RandomProjection(
                self.feature_map,
                self.num_random_features,
                self.num_key_value_heads,
                self.key_dim,
                self.seed,
            )
            self._random_projection.build()
        if self.exact_window is not None:
            self._far_gain = FarGain(self.num_heads, self.initial_log_gain)
            self._far_gain.build()

    @property
    def supports_state(self):
        # short inputs take no features, of which a state is made
        return self.exact_below is None

    @property
    def initial_logit_scale(self):
        return self.feature_map.initial_logit_scale

    @property
    def projection_matrix(self):
        """The random features, a float32 weight `(M, H)`; `None` if there are none.

        A dict of weights where the feature map has several parameters.
        """
        return self._random_projection and self._random_projection.parameters

    @property
    def log_gain(self):
        """What far keys' log-weights get, times 0.1, a weight `(N,)`; `None` if built
        without `exact_window`.
        """
        return self._far_gain and self._far_gain.log_gain

    @property
    def redraw_count(self):
        """How often the features were redrawn, an int32 weight."""
        return self._random_projection and self._random_projection.redraw_count

    def redraw_features(self, num_redraws: int = 1) -> None:
        """Replaces the random features by the next ones.

        The n-th matrix is a function of the layer's seed and n alone.

        Args:
            num_redraws: int, how many draws to move on in the sequence.
        """
        num_redraws = arguments.count("num_redraws", num_redraws)
        if self._random_projection is None or self.feature_map.trainable:
            raise ValueError(
                "redraw_features needs a built layer with random features that do not "
                "train: call the layer first, and make it with num_random_features. "
                f"Received: a layer with built={self.built}, "
                f"num_random_features={self.num_random_features} and "
                f"feature_map={self.feature_map!r}"
            )
        self._random_projection.redraw(num_redraws)

    def kernel(self):
        """The kernel of the features as they are drawn now, for `ops`."""
        if self._random_projection is None:
            if self.num_random_features is not None and not self.built:
                raise AttributeError(must_be_built(self))
            kernel = self.feature_map.kernel(None)
        else:
            kernel = self._random_projection.kernel()
        if not self.jit_compile:
            return kernel
        # layers with equal maps share what is compiled
        return kernel.made_by(self.feature_map)

    def attend(self, query, key, value, visible, state=None, training=None):
        kernel, gain = self.kernel(), self.log_gain_of_heads()
        if self.exact_below is None:
            inputs = query, key, value, visible
            return self._linear(*inputs, kernel, gain, state, training)

        def exact(inputs, constants):
            return ops.exact_attention(*inputs[:3], constants[0])

        def linear(inputs, constants):
            query, key, value, gain, *trained = inputs
            visible, parameters = constants
            copied = kernel.with_parameters(parameters).with_trained(trained)
            inputs = query, key, value, visible
            return self._linear(*inputs, copied, gain, None, training)[0]

        inputs = [query, key, value, gain, *kernel.trained]
        constants = visible, kernel.parameters
        return by_length(self.exact_below, exact, linear, inputs, constants), None

    def outline(self, query, key, value, visible, state=None, training=None):
        """As `attend` as far as shapes and errors go, without what it computes.

        To trace the loops over all tokens takes seconds for each layer of a model.
        """
        if self.exact_window is not None:
            check_window("exact_window", self.exact_window, query, key)
        if state is not None:
            self._as_state(state)
        attended = tf.tile(query[..., :1], (1, 1, 1, self.value_dim))
        if not visible.causal or self.exact_below is not None:
            return attended, None
        return attended, self.empty_state(size(query, 0))

    def _linear(self, query, key, value, visible, kernel, gain, state, training):
        """Attention through the features of a kernel, and its state if causal."""
        # a window to both sides carries sums from block to block, as causal loops do
        in_order = visible.causal or self.exact_window is not None
        compiles = should_compile(
            self.jit_compile,
            query,
            key,
            training,
            functools.partial(pays_on_cpu, in_order),
        )
        if state is not None:
            state = self._as_state(state)
        attended, state = linear_attention(
            query,
            key,
            value,
            kernel,
            visible,
            self.exact_window,
            gain,
            state,
            self.chunk_size,
            jit_compile=compiles,
        )
        return attended, None if state is None else state._asdict()

    def log_gain_of_heads(self):
        """What is added to the log-weights of far keys, `(N,)`."""
        if self._far_gain is None:
            return tf.zeros((self.num_heads,))
        return self._far_gain.of_heads()

    def scores(self, query, key, visible):
        kernel, gain = self.kernel(), self.log_gain_of_heads()

        def estimated(query, key, kernel, visible, gain):
            return ops.attention_scores(
                query,
                key,
                kernel,
                visible,
                exact_window=self.exact_window,
                log_gain=gain,
            )

        if self.exact_below is None:
            return estimated(query, key, kernel, visible, gain)

        def exact(inputs, constants):
            return ops.exact_scores(*inputs[:2], constants[0])

        def linear(inputs, constants):
            query, key, gain, *trained = inputs
            visible, parameters = constants
            copied = kernel.with_parameters(parameters).with_trained(trained)
            return estimated(query, key, copied, visible, gain)

        inputs = [query, key, gain, *kernel.trained]
        constants = visible, kernel.parameters
        return by_length(self.exact_below, exact, linear, inputs, constants)

    def empty_state(self, batch_size):
        state = ops.initial_state(
            batch_size,
            self.num_key_value_heads,
            self.feature_map.num_features(self.num_random_features, self.key_dim),
            self.value_dim,
            sum_dtype(self.compute_dtype),
        )
        if self.exact_window is not None:
            state = ops.with_recent_keys(
                state, self.exact_window, self.key_dim, self.compute_dtype
            )
        return state._asdict()

    def _as_state(self, state):
        """The entry "attention" of the layer's state, as `ops` takes it."""
        kind = ops.State if self.exact_window is None else ops.WindowedState
        return layer_state.attention_entry(self, kind, "exact_window", state)

    def get_config(self):
        names = (
            "chunk_size",
            "exact_below",
            "exact_window",
            "initial_log_gain",
            "jit_compile",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "feature_map": feature_maps.serialize(self.feature_map),
            "num_random_features": self._num_random_features,
        }
