"""Performer attention: its layer, random features, gain of far keys, compilation."""

import os
import random
import typing
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_performer import feature_maps, ops
from keras_performer.layers import arguments
from keras_performer.layers import state as layer_state
from keras_performer.layers.arguments import positive_int
from keras_performer.layers.attention import ForgettingAttention
from keras_performer.layers.config import KeepsWithoutEntry, must_be_built
from keras_performer.layers.dense import full_weight
from keras_performer.ops.blocks import has_gpu
from keras_performer.ops.shapes import compute_dtype, size, sum_dtype
from keras_performer.ops.slices import (
    Earlier,
    attend_slice,
    before_slice,
    check_slice,
    state_after,
)
from keras_performer.ops.state import sum_of_states
from keras_performer.ops.windowed import linear_attention

# With a window and a gate, heads of size 16 learned as much with 128 random features as
# with 256 in all tasks but one, in less time (the guide *Feature maps* has results).
SMALL_HEAD, FEATURES_OF_SMALL_HEADS = 16, 128


def with_number_of_features(config):
    """Returns the config of a built layer or model, changed if an older file has it.

    Until 2026-11-30, configs had "auto", which was the default of the feature map. Now
    they have the number.
    """
    if config.get("num_random_features") != "auto":
        return config
    features = feature_maps.get(config.get("feature_map", "softmax"))
    return {**config, "num_random_features": features.default_num_random_features}


class LinearAttention(ForgettingAttention):
    """Base class of linear attention, which uses the features of a kernel.

    A subclass defines `feature_kernel`. `PerformerAttention` describes the arguments.
    """

    supports_state = True
    supports_segments = True
    cost = "L"
    exact_window: int | None = None
    log_gain: tf.Tensor | None = None

    def __init__(
        self,
        *args: typing.Any,
        chunk_size: int | None = None,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.chunk_size = positive_int("chunk_size", chunk_size, default=None)
        self.jit_compile = arguments.jit_compile(jit_compile)

    def feature_kernel(self):
        """Returns the kernel of the current features, for `ops`."""
        raise NotImplementedError

    def attend(self, query, key, value, visible, state=None, training=None, decay=None):
        # With a window, a gate or segments, bidirectional attention runs causal loops.
        plain = self.exact_window is None and decay is None and visible.starts is None
        in_order = visible.causal or not plain
        compiles = should_compile(self.jit_compile, query, key, training, in_order)
        attended, state = linear_attention(
            query,
            key,
            value,
            self.feature_kernel(),
            visible,
            self.exact_window,
            self.log_gain,
            None if state is None else self._as_state(state),
            self.chunk_size,
            decay=decay,
            jit_compile=compiles,
        )
        return attended, layer_state.entry_of(state)

    def attend_slice(self, slices, query, key, value, visible, decay=None):
        given = query, key, value, self.feature_kernel(), visible
        window = self.exact_window, self.log_gain, self.chunk_size
        return attend_slice(slices, *given, *window, decay)

    def outline(
        self, query, key, value, visible, state=None, training=None, decay=None
    ):
        """Checks the state and returns tensors of the shapes that `attend` returns.

        Tracing the loops over all tokens would take seconds for each layer of a model.
        """
        if state is not None:
            self._as_state(state)
        attended = tf.tile(query[..., :1], (1, 1, 1, self.value_dim))
        return attended, self.empty_state(size(query, 0)) if visible.causal else None

    def absorb(self, x, mask, state, positions=None):
        """Adds keys and values of a piece of a sequence to a state's "attention".

        After `absorb` of all pieces, `answer` of each piece returns the same output as
        one bidirectional call on the whole sequence. x has shape `(B, tokens, dim)`.
        mask and positions (required with `rotary`) have shape `(B, tokens)`.
        """
        return self.state_after(x, mask, state, positions)[0]

    def state_after(self, x, mask, state, positions=None):
        """Returns a later state's "attention", and the log-decay of the added far keys.

        Arguments are as in `absorb`, for causal attention, too. The log-decay is a
        tensor `(B, K)`, or `None` without a gate.
        """
        key, value = self.project("key", x, positions), self.project("value", x)
        decay = self.forget_gate_layer(x, mask) if self.forget_gate else None
        kernel = self.feature_kernel().astype(compute_dtype(key, value))
        earlier = Earlier.of(self._as_state(state))
        given = key, value, ops.Visibility(mask), earlier, decay
        later, total = state_after(kernel, *given)
        return layer_state.entry_of(later.as_state()), total

    def before_slice(self, slices, x, state, total):
        """Exchanges states, and returns the "attention" of the state before a slice.

        `state` and `total` are from `state_after` for all tokens x of the slice; with
        several calls `total` is their sum.
        """
        check_slice(x, self.exact_window)
        earlier, kernel = Earlier.of(self._as_state(state)), self.feature_kernel()
        kernel = kernel.astype(earlier.far.sums.dtype)
        found = before_slice(slices, kernel, earlier, total)
        return layer_state.entry_of(found.as_state())

    def state_of_all(self, slices, state):
        """Returns the sum of the states of all slices, without a window and gates."""
        found = slices.gather(*self._as_state(state))
        return layer_state.entry_of(sum_of_states(*found))

    def answer(self, x, mask, state, training=None, positions=None):
        """Returns the output of the layer for a piece, after `absorb` of all pieces."""
        query = self.project("query", x, positions)
        kernel, state = self.feature_kernel(), self._as_state(state)
        attended = ops.answer_queries(query, kernel, state)
        return self.write(attended, mask, training)

    def empty_state(self, batch_size):
        sizes = self.num_key_value_heads, self._num_features(), self.value_dim
        dtype = sum_dtype(self.compute_dtype)
        return layer_state.entry_of(ops.initial_state(batch_size, *sizes, dtype))

    def _num_features(self):
        return self.key_dim

    def _as_state(self, state):
        """Returns the entry "attention" of a state as the tuple that `ops` takes."""
        return layer_state.attention_entry(self, ops.State, "key_dim", state)


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerAttention(LinearAttention):
    """Multi-head attention whose cost is linear in the length of the sequence.

    Use it in place of `keras.layers.MultiHeadAttention`: it has the same dense layers.
    Random projections turn queries and keys into positive features, whose products
    estimate the softmax weights exp(q . k / sqrt(key_dim)). No attention matrix is
    computed, so time and memory are linear in the length of the sequence (FAVOR+).

    To load the weights of a model with `keras.layers.MultiHeadAttention`, swap all its
    attention layers, keep their names and call `load_weights` on the new model. If
    that model was trained, also set `exact_window`. The new layers keep the random
    features that they sampled.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        value_dim: int V, size of each head of value. Defaults to `key_dim`.
        dropout: float, dropout rate. There is no attention matrix, so dropout acts on
            the attended values (the weighted averages of values), before the output
            projection. Defaults to `0.0`.
        use_bias: bool, whether the dense layers use bias vectors. Defaults to `True`.
        output_shape: int or tuple, the shape of the output besides batch and sequence.
            Defaults to the last dimension of the query.
        kernel_initializer, bias_initializer: initializers of the dense layers' kernels
            and biases. Defaults to `"glorot_uniform"` and `"zeros"`.
        kernel_regularizer, bias_regularizer, activity_regularizer: regularizers of the
            dense layers' kernels, biases and outputs. Defaults to `None`.
        kernel_constraint, bias_constraint: constraints of the dense layers' kernels and
            biases. Defaults to `None`.
        seed: int, seeds the random features and dropout. With `None` the layer chooses
            a seed when it is built and saves it with the weights. Defaults to `None`.
        feature_map: str, `FeatureMap` or config of one: how queries and keys become
            features. `keras_performer.feature_maps.get` lists the names, such as
            "softmax", "favor+", "taylor" and "relu". Defaults to `"softmax"`.
        num_random_features: int M, number of random features. More features make the
            estimate more accurate and the layer slower. `None` means no random
            projection: "relu" works without one, "softmax" does not. "auto" is 256, as
            in the paper's experiments, or `None` for feature maps without random
            features, such as "taylor". With `feature_map="softmax"`, a window, a gate
            and a `key_dim` of at most 16 it is 128, which learned as much in all of our
            tasks but one, in less time. Defaults to `"auto"`.
        causal: bool, hide later tokens. Defaults to `False`.
        num_key_value_heads: int K, number of heads of key and value (grouped-query
            attention). It must divide `num_heads`; each is shared by `num_heads / K`
            query heads. Defaults to `num_heads`.
        chunk_size: int, the largest number of tokens processed at once where attention
            is causal or has a window, a gate or segments. It changes speed and rounding
            only. `None` chooses a size for the device. Defaults to `None`.
        exact_window: int W, keys less than W tokens away from a query have exact
            softmax weights; only more distant (far) keys have estimated weights. 64 is
            a good choice. Masked tokens count in the distance. Query and key must have
            the same length, and the feature map must estimate softmax. A window adds a
            trainable gain for each head, see `initial_log_gain`. Defaults to `None`, no
            window.
        initial_log_gain: float, or a list with one for each head: the initial value of
            a trainable number that is added to the log-weights of far keys. Needs
            `exact_window`. With -4 a head attends mostly to near keys at first, with 2
            mostly to far keys. Without a forget gate the best value depends on the
            task: see the guide *Window, gain and gate*. Defaults to `0.0`, the plain
            estimate of softmax.
        rotary: `True` to rotate queries and keys by their positions before they become
            features (RoFormer, arXiv 2104.09864, equation 34; see
            `ops.rotary_embedding`). For images and other grids, a tuple of ints: the
            shape of the grid, whose tokens run row by row. Each axis rotates an equal
            part of the head, so `key_dim` must be divisible by twice the number of
            axes. Defaults to `None`, no positions.
        qk_norm: bool, divide queries and keys by their norms, so that the logit is
            `scale * cos(query, key)` (arXiv 2010.04245). Each key-value head learns its
            scale: it starts at 4, or at 16 for "taylor", and its logarithm is the
            weight `query_key_norm.log_scale`. Defaults to `False`.
        forget_gate: bool, let weights fade with distance (arXiv 2503.02130). Each token
            has a gate f = sigmoid(w . x + b) for each key-value head; the weight of a
            key is multiplied by the gates of all tokens between it and the query. w and
            b are weights of the sublayer `forget_gate_layer`. For self-attention only.
            Defaults to `False`.
        forget_gate_bias: two floats, the initial b of the first and of the last
            key-value head; the heads between them are spaced evenly. Or one float for
            each key-value head. A single head takes the last value. At the start a
            weight halves within 6 tokens for b = 2, within 760 for b = 7, and never for
            b = 20. Defaults to `(2.0, 7.0)`.
        jit_compile: bool or "auto", whether XLA compiles the attention, which takes
            seconds for each shape. "auto" compiles only in training, in a graph, with a
            known length of at least 1,024 and without `tf.distribute`, if TensorFlow
            has a GPU or uses at most 4 CPU threads. On CPUs, attention that is causal
            or has a window, a gate or segments also needs TensorFlow 2.21. Defaults to
            `"auto"`.
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
        return_attention_scores: bool, also return the attention matrix `(B, N, T, S)`
            that the features imply. Its cost is quadratic: use it to look at short
            sequences. Defaults to `False`.
        training: bool, whether to apply dropout. Defaults to Keras' training mode.
        use_causal_mask: bool, hide later tokens in this call, as `causal=True` does in
            all calls. Defaults to `False`.
        segment_ids: int tensor of shape `(B, T)`, for rows that pack several sequences
            (self-attention only). A token sees only its own segment. A segment is a run
            of equal ids: an id that returns after another starts a new segment. Rotary
            positions count along the whole row unless you give `positions`. To use ids
            and states together, start from
            `get_initial_state(batch_size, packed=True)`. The state then holds the last
            id as `"segment"`, and a call without ids continues that segment. Defaults
            to `None`, one segment.
        positions: int tensor of shape `(B, T)`, positions for `rotary`, below 2**31;
            for a grid also coordinates `(B, T, axes)`. Queries and keys have the same
            positions. Defaults to 0, 1, ..., or with a state to the next positions. The
            state never shifts positions that you give.
        state: dict, the state after earlier tokens (causal only), from
            `get_initial_state` or an earlier call. The cost of a call does not depend
            on the number of earlier tokens. Defaults to `None`, no earlier tokens.
        return_state: bool, also return the state after the last token. Defaults to
            `False`.

    Returns:
        Tensor of shape `(B, T, output_shape)`, followed by the scores and the state if
        you asked for them. Where a query sees no key, the attended values are 0.

    Raises:
        ValueError: if a mask differs by query; if causal or rotary attention, a window
            or a gate gets another sequence as key; if there is a state without causal
            attention; or if `initial_log_gain` is given without `exact_window`.

    Example:

    >>> layer = PerformerAttention(num_heads=2, key_dim=8)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])

    Token by token, at a constant cost for each:

    >>> layer = PerformerAttention(num_heads=2, key_dim=8, causal=True)
    >>> state = layer.get_initial_state(batch_size=1)
    >>> y, state = layer(keras.ops.ones((1, 1, 16)), state=state, return_state=True)
    >>> y.shape
    TensorShape([1, 1, 16])

    Reference:
        Choromanski et al. 2020, Rethinking Attention with Performers, arXiv 2009.14794.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *args: typing.Any,
        feature_map: str | dict | feature_maps.FeatureMap = "softmax",
        num_random_features: int | None | typing.Literal["auto"] = "auto",
        chunk_size: int | None = None,
        exact_window: int | None = None,
        initial_log_gain: float | Sequence[float] = 0.0,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        kwargs |= {"chunk_size": chunk_size, "jit_compile": jit_compile}
        super().__init__(num_heads, key_dim, *args, **kwargs)
        self.feature_map = feature_maps.get(feature_map)
        self.exact_window = positive_int("exact_window", exact_window, default=None)
        self.num_random_features = positive_int(
            "num_random_features", num_random_features, default=None, auto=True
        )
        if self.num_random_features == "auto":
            self.num_random_features = self._default_num_random_features()
        self.feature_map.check(self.num_random_features)
        if self.jit_compile:
            hash(self.feature_map)  # an unhashable map raises an error with advice
        if self.exact_window is not None and not self.feature_map.estimates_softmax:
            raise ValueError(
                "exact_window needs features that estimate softmax, because it adds "
                "exact and estimated weights, but "
                f"{type(self.feature_map).__name__} has another kernel. Use "
                'feature_map="softmax" or exact_window=None. Received: exact_window='
                f"{self.exact_window}"
            )
        self.initial_log_gain = self._checked_gain(initial_log_gain)
        self._random_projection = None  # until built, or if the map needs none
        self._far_gain = None

    def _default_num_random_features(self):
        near_and_gated = self.exact_window is not None and self.forget_gate
        is_small = near_and_gated and self.key_dim <= SMALL_HEAD
        if is_small and self.feature_map == feature_maps.get("softmax"):
            return FEATURES_OF_SMALL_HEADS
        return self.feature_map.default_num_random_features

    def _checked_gain(self, value):
        """Returns `initial_log_gain` as a float or a tuple; without a window only 0."""
        value = arguments.without_array(value)
        if not arguments.is_finite(value):
            wanted = "a finite float, or a list of finite floats, one for each of the "
            wanted += f"{self.num_heads} heads"
            heads = [self.num_heads]
            value = arguments.floats("initial_log_gain", value, heads, wanted)
        if np.any(value) and self.exact_window is None:
            raise ValueError(
                "initial_log_gain changes the weights of keys outside of an exact "
                "window: give exact_window as well. Received: "
                f"initial_log_gain={value!r}, exact_window=None"
            )
        return value if isinstance(value, tuple) else float(value)

    def build_attention(self):
        if self.num_random_features is not None:
            sizes = self.num_random_features, self.num_key_value_heads, self.key_dim
            self._random_projection = RandomProjection(
                self.feature_map, *sizes, self.seed
            )
            self._random_projection.build()
        if self.exact_window is not None:
            self._far_gain = FarGain(self.num_heads, self.initial_log_gain)
            self._far_gain.build()

    @property
    def counts_tokens(self):
        return "exact_window" if self.exact_window else super().counts_tokens

    @property
    def initial_logit_scale(self):
        return self.feature_map.initial_logit_scale

    @property
    def projection_matrix(self):
        """The random projection, a float32 weight `(M, H)`; `None` if there is none.

        A feature map with several parameters has a dict of weights here.
        """
        return self._random_projection and self._random_projection.parameters

    @property
    def log_gain(self):
        """The current log-gain of each head, a float32 tensor `(N,)`.

        The log-gain is added to the log-weights of far keys. Training starts from
        `initial_log_gain`. `None` without `exact_window`.
        """
        gain = self._far_gain
        return gain and SPEED * tf.convert_to_tensor(gain.log_gain)

    def assign_log_gain(self, log_gain: float | Sequence[float]) -> None:
        """Sets the log-gain, which is added to the log-weights of far keys.

        Args:
            log_gain: float, or one for each head.
        """
        if self._far_gain is None:
            raise ValueError(
                "assign_log_gain needs a built layer with exact_window, because others "
                f"have no far keys. Received: a layer with built={self.built} and "
                f"exact_window={self.exact_window}"
            )
        weight = self._far_gain.log_gain
        gain = tf.cast(tf.convert_to_tensor(log_gain), weight.dtype)
        if gain.shape.rank and gain.shape != weight.shape:
            raise ValueError(
                f"log_gain must be a float, or {weight.shape[0]} floats, one for each "
                f"head. Received: log_gain of shape {tuple(gain.shape)}"
            )
        weight.assign(tf.broadcast_to(gain / SPEED, weight.shape))

    @property
    def redraw_count(self):
        """Number of redraws of the features, an int32 weight."""
        return self._random_projection and self._random_projection.redraw_count

    def redraw_features(self, num_redraws: int = 1) -> None:
        """Replaces the random features by the next ones of their sequence.

        The seed of the layer determines the whole sequence.

        Args:
            num_redraws: int, number of steps in the sequence. Defaults to `1`.
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

    def feature_kernel(self):
        """Returns the kernel of the current features, for `ops`."""
        if self._random_projection is None:
            if self.num_random_features is not None and not self.built:
                raise AttributeError(must_be_built(self))
            kernel = self.feature_map.kernel(None)
        else:
            kernel = self._random_projection.feature_kernel()
        if not self.jit_compile:
            return kernel
        # Layers with equal maps share compiled functions.
        return kernel.made_by(self.feature_map)

    @property
    def two_pass_methods(self):
        names = super().two_pass_methods
        has_window = names and self.exact_window is not None
        return ("look_ahead", "look_back") if has_window else names

    def look_ahead(self, x, mask, state, positions=None):
        """Attends to later keys; called from the last piece to the first.

        `look_ahead` and then `look_back` of all pieces give the same output as one
        bidirectional call with a window on the whole sequence. Arguments are as in
        `absorb`; `state` comes from `look_ahead` of the following piece.

        Returns:
            `(later, state)`: a pair of tensors for `look_back`, and the state after the
            keys and values of this piece.
        """
        x, mask, positions = (
            z if z is None else tf.reverse(z, [1]) for z in (x, mask, positions)
        )
        *later, state = self._attend_before(x, mask, state, positions, own_key=False)
        return tuple(tf.reverse(z, [1]) for z in later), state

    def look_back(self, x, mask, state, later, training=None, positions=None):
        """Returns the output of the layer for a piece, and the state after the piece.

        Call it from the first piece to the last; `later` is from `look_ahead`.
        """
        *earlier, state = self._attend_before(x, mask, state, positions, own_key=True)
        attended, _ = ops.join_parts(earlier, later)
        attended = tf.cast(attended, self.compute_dtype)
        return self.write(attended, mask, training), state

    def _attend_before(self, x, mask, state, positions, own_key):
        """Returns `ops.attend_to_earlier` for a piece, with the state as a dict."""
        output, log_sums, state = ops.attend_to_earlier(
            *(self.project(name, x, positions) for name in ("query", "key", "value")),
            self.feature_kernel(),
            self.exact_window,
            self.log_gain,
            mask,
            self._as_state(state),
            self.chunk_size,
            own_key=own_key,
        )
        return output, log_sums, layer_state.entry_of(state)

    def cross_config(self):
        near = {"exact_window": None, "initial_log_gain": 0.0}
        return {**super().cross_config(), **near}

    def empty_state(self, batch_size):
        state = super().empty_state(batch_size)
        if self.exact_window is None:
            return state
        sizes = self.exact_window, self.key_dim, self.compute_dtype
        empty = ops.with_recent_keys(ops.State(**state), *sizes, self.forget_gate)
        return layer_state.entry_of(empty)

    def _num_features(self):
        return self.feature_map.num_features(self.num_random_features, self.key_dim)

    def _as_state(self, state):
        kind = ops.State if self.exact_window is None else ops.WindowedState
        return layer_state.attention_entry(self, kind, "exact_window", state)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        made_of = with_number_of_features(config)
        return super().from_config(made_of, custom_objects)


@keras.saving.register_keras_serializable(package="keras_performer")
class LinearTransformerAttention(LinearAttention):
    """Attention of the Linear Transformer, with the features elu(x) + 1.

    With phi(x) = elu(x) + 1, the weight of key j is phi(q) . phi(k_j), divided by the
    sum over all keys that the query sees. This layer does not estimate softmax: train
    it from scratch, or continue training after a conversion. Time and memory are linear
    in the length, and a causal layer has a state, as in `PerformerAttention`.

    `PerformerAttention(feature_map="elu", num_random_features=None)` is nearly the
    same, but divides queries and keys by H^(1/4) and adds 0.001 to each feature. This
    layer adds nothing: if all weights of a query round to 0 (below 1e-38 in float32),
    its attended values are 0.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        chunk_size, jit_compile, forget_gate, forget_gate_bias: as in
            `PerformerAttention`. Defaults to `None`, `"auto"`, `False`, `(2.0, 7.0)`.

    Call arguments and returns: as in `PerformerAttention`.

    Reference:
        Katharopoulos et al. 2020, Transformers are RNNs, arXiv 2006.16236, equations 5
        and 7, and section 3.3 for causal attention.

    Example:

    >>> layer = LinearTransformerAttention(num_heads=2, key_dim=8, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    # as in `PerformerAttention`
    initial_logit_scale = 4.0

    def feature_kernel(self):
        return ops.EluKernel()


class RandomProjection(KeepsWithoutEntry, keras.layers.Layer):
    """Holds the parameters of random features and samples new ones."""

    def __init__(self, feature_map, num_features, num_heads, head_dim, seed=None):
        super().__init__(name="random_projection", dtype="float32")
        self.feature_map = feature_map
        self.num_features = num_features
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.seed = seed

    def build(self, input_shape=None):
        seed, counter = seed_or_random(self.seed), dict(dtype="int32", trainable=False)
        first = keras.initializers.Constant(seed)
        # A weight, so that all workers and resumed runs sample the same sequence.
        self.first_seed = full_weight(self, "projection_seed", (), first, **counter)
        self.redraw_count = full_weight(self, "redraw_count", (), "zeros", **counter)
        values = draw_once(lambda: self._draw(seed, 0))
        is_one = not isinstance(values, dict)
        named = {"projection_matrix": values} if is_one else values
        weights = {
            name: add_drawn_weight(self, name, named[name], self.feature_map.trainable)
            for name in sorted(named)
        }
        if is_one:
            self.parameters = weights["projection_matrix"]
            return
        # Keras would wrap a dict, and leaves dicts out of a `tf.train.Checkpoint`
        vars(self)["parameters"] = weights
        for name, weight in weights.items():
            setattr(self, f"parameter_{name}", weight)

    def feature_kernel(self):
        """Returns the kernel of the current features."""
        kernel = self.feature_map.kernel(
            tf.nest.map_structure(tf.convert_to_tensor, self.parameters)
        )
        return kernel.with_gradients() if self.feature_map.trainable else kernel

    def redraw(self, num_redraws):
        """Moves on by `num_redraws` in the sequence that the seed determines."""
        count = tf.convert_to_tensor(self.redraw_count) + num_redraws
        values = self._draw(tf.convert_to_tensor(self.first_seed), count)
        self.redraw_count.assign(count)
        tf.nest.map_structure(lambda w, x: w.assign(x), self.parameters, values)

    def load_own_variables(self, store):
        # Layers that estimate softmax always save features. A file without features
        # is from exact attention, such as `MultiHeadAttention`: keep the sampled ones.
        if self.feature_map.estimates_softmax:
            super().load_own_variables(store)
        else:
            keras.layers.Layer.load_own_variables(self, store)

    def _draw(self, seed, redraw_count):
        with tf.device("CPU:0"):  # so that all machines sample the same features
            seed = tf.stack([tf.cast(seed, tf.int32), tf.cast(redraw_count, tf.int32)])
            return self.feature_map.draw_for_heads(
                self.num_heads, self.num_features, self.head_dim, seed
            )


# -- Weights that do not train: sampled once, as a pure function of a seed.


MAX_SEED = 2**31 - 1


def seed_or_random(seed):
    """Returns a seed as an int from 0 to `MAX_SEED - 1`, sampled for `None`."""
    if seed is None:
        # keras.utils.set_random_seed seeds `random`, also for Keras' own layers.
        seed = random.randrange(MAX_SEED)
    return seed % MAX_SEED


def draw_once(function):
    """Calls a function that samples initial weights, outside of graphs."""
    with tf.init_scope():
        values = function()
        if tf.executing_eagerly():  # arrays, which any graph can use as constants
            values = tf.nest.map_structure(np.asarray, values)
    return values


def add_drawn_weight(layer, name, value, trainable=False):
    """Adds a weight to a layer, with a sampled value and the dtype of this value."""

    def drawn(shape, dtype):
        return tf.convert_to_tensor(value)

    options = {"dtype": value.dtype.name, "trainable": trainable}
    return full_weight(layer, name, value.shape, drawn, **options)


# The gain trains this many times faster than other weights. With 1 it is too slow:
# recall over 512 tokens trains to 0.05 instead of 0.96.
SPEED = 10.0


class FarGain(KeepsWithoutEntry, keras.layers.Layer):
    """Trainable log-gain: a number added to the log-weights of far keys.

    Estimated weights are biased and noisy, exact weights are not. Attention learns to
    retrieve far keys only if it can learn the ratio between the two.
    """

    def __init__(self, num_heads, initial=0.0):
        super().__init__(name="far_gain", dtype="float32")
        self.num_heads = num_heads
        self.initial = initial

    def build(self, input_shape=None):
        first = keras.initializers.Constant(np.divide(self.initial, SPEED))
        self.log_gain = full_weight(self, "log_gain", (self.num_heads,), first)


# -- The choice of `jit_compile="auto"`.


# With shorter sequences, compiling takes longer than a whole training.
MIN_COMPILED_LENGTH = 1024
# On CPUs, XLA runs each product of a chunk on one thread, TensorFlow on all. With 2 to
# 4 threads compiled attention was faster, or as fast (causal, 16,384 tokens, 4). With
# one thread it took 0.9 to 1.1 times as long (4,096 tokens).
MAX_CPU_THREADS = 4


def should_compile(jit_compile, query, key, training, in_order):
    """Decides if XLA compiles attention of query `(B, T, ...)` to key `(B, S, ...)`.

    `in_order` tells if loops carry sums from block to block, as causal loops do. It is
    `None` for local attention, which "auto" does not compile on CPUs: compiled, it was
    a tenth faster with two threads and windows of 64, but took up to twice as long with
    one thread or windows of 257.
    """
    if jit_compile != "auto":
        return jit_compile
    # XLA compiles again for each length, and inference may have many. An exported model
    # should run without XLA. Strategies compile functions, or place them, themselves.
    lengths = (query.shape[1], key.shape[1])
    return (
        training is True
        and not tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and None not in lengths
        and max(lengths) >= MIN_COMPILED_LENGTH
        and (has_gpu() or (in_order is not None and pays_on_cpu(in_order)))
    )


def pays_on_cpu(in_order):
    """Returns True if compiled attention was faster in measurements on such CPUs."""
    major, minor = tf.__version__.split(".")[:2]
    # Before 2.21, XLA ran the many small products of causal loops one after another.
    if in_order and (int(major), int(minor)) < (2, 21):
        return False
    return cpu_threads() <= MAX_CPU_THREADS


def cpu_threads():
    """Returns the number of threads that a TensorFlow operation may use."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    if threads:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
