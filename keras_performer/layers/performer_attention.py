"""Multi-head attention in time and memory linear in the length."""

import functools

import keras
import tensorflow as tf

from keras_performer import feature_maps, ops
from keras_performer.layers import arguments, compiled, exact
from keras_performer.layers.attention_axes import AttentionAxes
from keras_performer.layers.dense import heads_dense
from keras_performer.layers.key_masks import as_mask, visible_keys
from keras_performer.layers.random_projection import RandomProjection

_DENSE_OPTIONS = """kernel_initializer bias_initializer kernel_regularizer
    bias_regularizer kernel_constraint bias_constraint""".split()


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerAttention(keras.layers.Layer):
    """FAVOR+ attention that stands where `keras.layers.MultiHeadAttention` stands.

    Queries, keys and values are projected as there; the softmax kernel
    exp(q . k / sqrt(key_dim)) is then estimated by products of positive random
    features, so that time and memory are linear in the length of the sequence.

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
        kernel_initializer: initializer of the dense layers' kernels.
        bias_initializer: initializer of the dense layers' biases.
        kernel_regularizer: regularizer of the dense layers' kernels.
        bias_regularizer: regularizer of the dense layers' biases.
        activity_regularizer: regularizer of the dense layers' outputs.
        kernel_constraint: constraint of the dense layers' kernels.
        bias_constraint: constraint of the dense layers' biases.
        seed: int, seeds the random features and dropout. By default it is drawn when
            the layer is built, and saved with the weights.
        feature_map: "softmax" (default), "favor+", "relu" or another name, object or
            config of `keras_performer.feature_maps.get`.
        num_random_features: int M, counted as features. 256 as in the paper's
            experiments. `None` for no random projection (generalized kernels only).
        causal: bool, hide later tokens.
        num_key_value_heads: int K, a divisor of `num_heads`: that many heads of key and
            value, each shared by `num_heads / K` query heads. Defaults to `num_heads`.
        chunk_size: int, the most tokens in a chunk of the causal form; it changes speed
            and rounding only. Defaults to 64.
        exact_below: int, inputs with fewer keys than this take exact softmax attention,
            with the same weights: it is faster there. For feature maps that estimate
            softmax only. A layer with it takes and returns no state, as a state is made
            of features: leave it out to decode token by token. Defaults to never.
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
        attention_mask: bool tensor `(B, S)`, `(B, 1, S)` or `(B, 1, 1, S)`: which keys
            are seen. It cannot differ by query: Keras' `(T, S)` has no meaning here.
        return_attention_scores: bool, also return the implied attention matrix
            `(B, N, T, S)`, for looking at short sequences: its cost is quadratic. With
            `attention_axes`: `(*batch axes, N, *query axes, *key axes)`.
        training: bool, whether to apply dropout.
        use_causal_mask: bool, hide later tokens in this call.
        state: the state after earlier tokens (causal only), from `initial_state` or an
            earlier call. T new tokens cost the same however many came before.
        return_state: bool, also return the state after the last token.

    Returns:
        Tensor of shape `(B, T, output_shape)`; then the scores and the state, if asked
        for. Where no key is visible the attended values are 0.

    Raises:
        ValueError: for a mask that differs by query, causal attention with T != S, a
            state without causal attention or with `exact_below`.

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

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        seed=None,
        *,
        feature_map="softmax",
        num_random_features=256,
        causal=False,
        num_key_value_heads=None,
        chunk_size=None,
        exact_below=None,
        jit_compile="auto",
        **kwargs,
    ):
        # Without autocast Keras leaves the state in float32; the dense layers cast.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        positive_int = arguments.positive_int
        self.num_heads = positive_int("num_heads", num_heads)
        self.key_dim = positive_int("key_dim", key_dim)
        self.value_dim = positive_int("value_dim", value_dim, default=self.key_dim)
        self.dropout = arguments.rate("dropout", dropout)
        self.use_bias = arguments.boolean("use_bias", use_bias)
        # `output_shape` itself would hide a property that Keras' models read.
        self._output_shape = arguments.sizes("output_shape", output_shape)
        self.attention_axes = arguments.int_tuple("attention_axes", attention_axes)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # the dense layers' regularizer; `activity_regularizer` would be this layer's
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = arguments.seed(seed)
        self.feature_map = feature_maps.get(feature_map)
        self.num_random_features = positive_int(
            "num_random_features", num_random_features, default=None
        )
        self.feature_map.check(self.num_random_features)
        self.causal = arguments.boolean("causal", causal)
        self.num_key_value_heads = arguments.key_value_heads(
            num_key_value_heads, self.num_heads
        )
        self.chunk_size = positive_int("chunk_size", chunk_size, default=None)
        self.exact_below = arguments.exact_below(exact_below, self.feature_map)
        self.jit_compile = arguments.jit_compile(jit_compile, self.feature_map)
        self._random_projection = None  # until built, and where there is none

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        arguments.check_shapes(query_shape, value_shape, key_shape)
        self._axes = AttentionAxes(len(query_shape), self.attention_axes)
        dense = functools.partial(
            heads_dense,
            use_bias=self.use_bias,
            activity_regularizer=self._activity_regularizer,
            dtype=self.dtype_policy,
            **{name: getattr(self, name) for name in _DENSE_OPTIONS},
        )
        heads, kv_heads = self.num_heads, self.num_key_value_heads
        attended_shape = (*query_shape[:-1], heads, self.value_dim)
        output_shape = self._output_shape or (query_shape[-1],)
        self._query_dense = dense("query", query_shape, 1, (heads, self.key_dim))
        self._key_dense = dense("key", key_shape, 1, (kv_heads, self.key_dim))
        self._value_dense = dense("value", value_shape, 1, (kv_heads, self.value_dim))
        self._output_dense = dense("attention_output", attended_shape, 2, output_shape)
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )
        if self.num_random_features is not None:
            self._random_projection = RandomProjection(
                self.feature_map, self.num_random_features, self.key_dim, self.seed
            )
            self._random_projection.build()

    @property
    def projection_matrix(self):
        """The random features, a float32 weight `(M, H)`; `None` if there are none."""
        return self._random_projection and self._random_projection.matrix

    @property
    def redraw_count(self):
        """How often the features were redrawn, an int32 weight."""
        return self._random_projection and self._random_projection.redraw_count

    def redraw_features(self, num_redraws=1):
        """Replaces the random features by the next ones.

        The n-th matrix is a function of the layer's seed and n alone.

        Args:
            num_redraws: int, how many draws to move on in the sequence.
        """
        if self.projection_matrix is None:
            raise ValueError(
                "redraw_features needs a built layer with random features. Received: "
                f"a layer with built={self.built} and "
                f"num_random_features={self.num_random_features}"
            )
        self._random_projection.redraw(num_redraws)

    def initial_state(self, batch_size):
        """The state before the first token.

        Args:
            batch_size: int or scalar tensor B.

        Returns:
            Tuple `(running_max, sums)` of tensors `(B, K, M)` and `(B, K, V + 1, M)`.
        """
        return ops.initial_state(
            batch_size,
            self.num_key_value_heads,
            self.num_random_features or self.key_dim,
            self.value_dim,
            "float64" if self.compute_dtype == "float64" else "float32",
        )

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        state=None,
        return_state=False,
    ):
        causal = self.causal or use_causal_mask
        arguments.check_state(
            *(causal, state, return_state, return_attention_scores),
            *(self.exact_below, self._axes),
        )
        if query_mask is None:
            query_mask = getattr(query, "_keras_mask", None)
        if value is None:
            value, value_mask = query, query_mask if value_mask is None else value_mask
        key = value if key is None else key
        visible = visible_keys(key, value_mask, key_mask, attention_mask)
        query_mask = as_mask("query_mask", query_mask, query)
        if causal:
            arguments.check_causal_lengths(query, key)
        self._axes.check_batches(query, key)

        fold = self._axes.fold
        # copies without Keras' masks, which the dense layers would warn about
        q = fold(self._query_dense(tf.identity(query)))
        k = fold(self._key_dense(tf.identity(key)))
        v = fold(self._value_dense(tf.identity(value)))
        visible = None if visible is None else fold(visible[..., tf.newaxis])[..., 0]
        matrix = self.projection_matrix
        matrix = None if matrix is None else tf.convert_to_tensor(matrix)
        attend = compiled.attention(
            compiled.should_compile(self.jit_compile, causal, q, k, training),
            *(self.feature_map, causal, self.chunk_size),
        )
        if state is not None or return_state:
            attended, state = attend(q, k, v, matrix, visible, state)
        else:
            attended = exact.by_length(
                self.exact_below,
                lambda q, k, v, _, seen: exact.exact_attention(q, k, v, seen, causal),
                lambda *arguments: attend(*arguments, None)[0],
                *((q, k, v), (matrix, visible)),
            )
        attended = self._axes.unfold(attended, query)
        if query_mask is not None:
            attended *= tf.cast(query_mask, attended.dtype)[..., tf.newaxis, tf.newaxis]
        attended = self._dropout_layer(attended, training=training)
        output = self._output_dense(attended)
        if not (return_attention_scores or return_state):
            return output
        outputs = [output]
        if return_attention_scores:
            kernel = self.feature_map.kernel
            scores = exact.by_length(
                self.exact_below,
                lambda q, k, _, seen: exact.exact_scores(q, k, seen, causal),
                lambda q, k, matrix, seen: ops.attention_scores(
                    q, k, kernel(matrix), seen, causal
                ),
                *((q, k), (matrix, visible)),
            )
            if query_mask is not None:
                rows = fold(query_mask[..., tf.newaxis])
                scores *= tf.cast(rows, scores.dtype)[:, tf.newaxis]
            outputs.append(self._axes.unfold_scores(scores, query, key))
        if return_state:
            outputs.append(state)
        return tuple(outputs)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(self, *args, **kwargs):
        # by tracing `call`, so that its errors come when a model is made
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        plain = """num_heads key_dim value_dim dropout use_bias attention_axes seed
            num_random_features causal num_key_value_heads chunk_size exact_below
            jit_compile"""
        config = {name: getattr(self, name) for name in plain.split()}
        for name in _DENSE_OPTIONS:
            kind = getattr(keras, name.split("_")[1] + "s")  # keras.initializers, ...
            config[name] = kind.serialize(getattr(self, name))
        return {
            **super().get_config(),
            **config,
            "output_shape": self._output_shape,
            "activity_regularizer": keras.regularizers.serialize(
                self._activity_regularizer
            ),
            "feature_map": feature_maps.serialize(self.feature_map),
        }

    query_dense = property(lambda self: self._query_dense)
    key_dense = property(lambda self: self._key_dense)
    value_dense = property(lambda self: self._value_dense)
    output_dense = property(lambda self: self._output_dense)
