"""Longformer: local attention with global tokens.

The few keys and queries of global tokens are gathered from the sequence, so that no
array is quadratic in the length.
"""

import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.arguments import LayerInput
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.call_inputs import as_mask
from keras_performer.layers.dense import copied_dense
from keras_performer.layers.performer import should_compile
from keras_performer.ops import compile
from keras_performer.ops.checks import check_attention_inputs, check_window
from keras_performer.ops.exact import attend_to_seen, attend_with_log_sums
from keras_performer.ops.local import attention as local
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.normalizer import joined
from keras_performer.ops.shapes import TensorLike, pad, size
from keras_performer.ops.visibility import Visibility, mask_or_all


def global_token_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    global_query: TensorLike,
    global_key: TensorLike,
    global_value: TensorLike,
    sliding_window: int,
    num_global_tokens: int,
    visible: Visibility,
    *,
    jit_compile: bool = False,
) -> tf.Tensor:
    """Attention to the keys near a query and to a few global tokens.

    `visible.global_tokens` marks the global tokens. A global token sees all keys; its
    heads are `global_query`, `global_key` and `global_value`. Any other query i sees
    the keys j with `|i - j| < sliding_window` and all global tokens in one softmax; its
    heads are `query`, `key` and `value`. With `visible.causal` no query sees a later
    key.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, T, K, H)`; N is a multiple of K.
        value: tensor of shape `(B, T, K, V)`.
        global_query, global_key, global_value: tensors of the same shapes.
        sliding_window: int W.
        num_global_tokens: int G. If more are marked, only the first G are global.
        visible: a `Visibility` with `global_tokens` and without segments.
        jit_compile: as in `local_attention`, for the window. Defaults to `False`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`, 0 where no key is
        visible. Time and memory are linear in T * (W + G).

    Reference:
        Beltagy et al. 2020, Longformer, arXiv 2004.05150, section 3.1.

    Example:

    >>> x = tf.random.stateless_normal((1, 9, 1, 2), seed=(0, 2))
    >>> steps = tf.reshape(tf.range(9.0), (1, 9, 1, 1))
    >>> first = tf.range(9)[tf.newaxis] == 0
    >>> visible = Visibility(global_tokens=first)
    >>> heads = 0 * x, 0 * x, steps
    >>> y = global_token_attention(*heads, *heads, 1, 1, visible)
    >>> y[0, :, 0, 0].numpy().tolist()  # averages: all; itself and the first
    [4.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    """
    given = (query, key, value), (global_query, global_key, global_value)
    heads, global_heads = ([tf.convert_to_tensor(x) for x in one] for one in given)
    for q, k, v in (heads, global_heads):
        check_attention_inputs(q, k, v, visible._replace(global_tokens=None))
    check_window("sliding_window", sliding_window, heads[0], heads[1])
    if visible.starts is not None:
        raise ValueError(
            "global_token_attention does not support packed sequences: give each "
            "sequence its own row of the batch. Received: Visibility(..., starts=...)"
        )
    counts = sliding_window, num_global_tokens
    arguments = heads, global_heads, *counts, visible, jit_compile
    output = compile.call_in_graph(_attend, None, *arguments, jit_compile=jit_compile)
    return tf.cast(output, heads[0].dtype)


def _attend(
    _, heads, global_heads, sliding_window, num_global_tokens, visible, jit_compile
):
    """Computes `global_token_attention` of checked arguments, float32 or float64."""
    query, key, value = heads
    global_query, global_key, global_value = global_heads
    number = tf.math.cumsum(tf.cast(visible.global_tokens, tf.int32), axis=1)
    is_global = tf.logical_and(visible.global_tokens, number <= num_global_tokens)
    key_mask = mask_or_all(visible.key_mask, key)

    others = tf.logical_and(key_mask, tf.logical_not(is_global))
    keys = Recent.of(key, value, others)
    options = sliding_window, visible.causal, jit_compile
    near = local.attend(None, query, keys, None, *options)

    # positions of the global tokens, `(B, G)`; T for missing ones
    ordinals = tf.broadcast_to(
        tf.range(1, num_global_tokens + 1), (size(query, 0), num_global_tokens)
    )
    # end with a large number, because TensorFlow searches no rows of length 0
    ended = tf.pad(number, [[0, 0], [0, 1]], constant_values=number.dtype.max)
    positions = tf.searchsorted(ended, ordinals)
    length = size(query, 1)
    there = positions < length

    def taken(x):
        # missing global tokens take one more token, which `seen` hides
        x = pad(x, [[0, 0], [0, 1]] + [[0, 0]] * (len(x.shape) - 2))
        return tf.gather(x, positions, axis=1, batch_dims=1)

    times = tf.range(length)
    seen = tf.logical_and(taken(key_mask), there)[:, tf.newaxis]
    if visible.causal:
        earlier = positions[:, tf.newaxis] <= times[:, tf.newaxis]
        seen = tf.logical_and(seen, earlier)
    of_globals = attend_with_log_sums(query, taken(key), taken(value), seen)
    output, _ = joined([near, of_globals])

    seen = key_mask[:, tf.newaxis]
    if visible.causal:
        seen = tf.logical_and(seen, times <= positions[..., tf.newaxis])
    rows = attend_to_seen(taken(global_query), global_key, global_value, seen)
    ranks = tf.clip_by_value(number - 1, 0, num_global_tokens - 1)
    rows = tf.gather(rows, ranks, axis=1, batch_dims=1)
    return tf.where(is_global[..., tf.newaxis, tf.newaxis], rows, output)


@keras.saving.register_keras_serializable(package="keras_performer")
class LongformerAttention(AttentionLayer):
    """Longformer attention to near keys and to global tokens, linear in the length.

    A global token sees all keys, and all queries see it. Any other query i sees the
    keys j with `|i - j| < sliding_window`, or `0 <= i - j < sliding_window` if causal,
    and the global tokens, each once, in one softmax. If causal, no query sees a later
    token, global or not.

    Global tokens attend through their own dense layers, `query_global`, `key_global`
    and `value_global`. These layers start as copies of `query`, `key` and `value`, and
    become copies again if you load weights without them. All other queries attend to
    global tokens through `query`, `key` and `value`.

    Args:
        num_heads, key_dim, **kwargs: as in `PerformerAttention`, which also describes
            the arguments of the signature that are not listed here.
        sliding_window: int W, required. A query sees keys less than W tokens away; with
            1 it sees only its own token. The paper's window is `2 W - 1` keys.
        num_global_tokens: int G, maximal number of global tokens in a sequence; XLA
            needs it. The first G visible tokens are global, unless `global_mask` marks
            others. The paper uses 1 for classification, and the tokens of the question
            for question answering. Defaults to `0`: local attention, without extra
            dense layers.
        jit_compile: as in `LocalAttention`, for the window. Defaults to `"auto"`.

    Call arguments and returns: as in `PerformerAttention`, but without `segment_ids`,
    `state` and `return_state`. One further argument:

    Call arguments:
        global_mask: bool tensor of shape `(B, T)`, true for global tokens, at most G in
            a sequence. More raise an error, except under XLA, which leaves out the
            check and uses the first G. No query sees a masked key, global or not.
            Blocks and models do not pass this argument, so the first G visible tokens
            are global there.

    Raises:
        ValueError: if query and key have different lengths, if there is a `global_mask`
            without `num_global_tokens`, and as in `AttentionLayer`.

    Reference:
        Beltagy et al. 2020, Longformer, arXiv 2004.05150, section 3.1.

    Example:

    >>> layer = LongformerAttention(2, 8, sliding_window=32, num_global_tokens=4)
    >>> x = keras.ops.ones((1, 100, 16))
    >>> layer(x).shape  # the first four
    TensorShape([1, 100, 16])
    >>> layer(x, global_mask=keras.ops.arange(100)[None] % 40 == 7).shape
    TensorShape([1, 100, 16])
    """

    supports_cross_attention = False
    counts_tokens = "sliding_window"
    cost = "L"

    def __init__(
        self,
        *args: typing.Any,
        sliding_window: int,
        num_global_tokens: int = 0,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sliding_window = arguments.positive_int("sliding_window", sliding_window)
        self.num_global_tokens = arguments.count("num_global_tokens", num_global_tokens)
        self.jit_compile = arguments.jit_compile(jit_compile)

    def build_attention(self):
        if not self.num_global_tokens:
            return
        self._query_global_dense = copied_dense(self._query_dense, "query_global")
        self._key_global_dense = copied_dense(self._key_dense, "key_global")
        self._value_global_dense = copied_dense(self._value_dense, "value_global")

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
        global_mask: LayerInput | None = None,
    ) -> typing.Any:
        masks = query_mask, value_mask, key_mask, attention_mask
        inputs = self.read(query, value, key, *masks, use_causal_mask, segment_ids)
        mask, visible = None, inputs.visible
        if global_mask is not None:
            most = self.num_global_tokens
            if not most:
                raise ValueError(
                    "global_mask needs num_global_tokens > 0: make the layer with "
                    "num_global_tokens, the largest number in a sequence. Received: "
                    "global_mask, and num_global_tokens=0"
                )
            mask = as_mask("global_mask", global_mask, inputs.query)
            tf.debugging.assert_less_equal(
                tf.reduce_sum(tf.cast(mask, tf.int32), axis=1),
                most,
                "global_mask must mark at most num_global_tokens tokens of a sequence: "
                "make the layer with a larger num_global_tokens",
            )
        elif self.num_global_tokens:
            mask = mask_or_all(visible.key_mask, inputs.query)
        if mask is not None:
            number = tf.math.cumsum(tf.cast(mask, tf.int32), axis=1)
            mask = tf.logical_and(mask, number <= self.num_global_tokens)
        inputs = inputs._replace(visible=visible._replace(global_tokens=mask))
        return self.respond(
            inputs, return_attention_scores, training, positions, state, return_state
        )

    if typing.TYPE_CHECKING:  # Keras' own signature takes any arguments
        __call__ = call

    def project(self, name, x, positions=None):
        """Returns heads, and heads of global tokens, `None` without such tokens."""
        heads = super().project(name, x, positions)
        if not self.num_global_tokens:
            return heads, None
        return heads, super().project(f"{name}_global", x, positions)

    def attend(self, query, key, value, visible, state=None, training=None):
        heads, global_heads = zip(query, key, value)
        compiles = should_compile(self.jit_compile, *heads[:2], training, in_order=None)
        sizes = self.sliding_window, self.num_global_tokens
        if not self.num_global_tokens:
            options = sizes[0], visible
            return ops.local_attention(*heads, *options, jit_compile=compiles)[0], None
        attended = global_token_attention(
            *heads, *global_heads, *sizes, visible, jit_compile=compiles
        )
        return attended, None

    def scores(self, query, key, visible):
        heads, global_heads = zip(query, key)
        visible = visible._replace(sliding_window=self.sliding_window)
        if not self.num_global_tokens:
            return ops.exact_scores(*heads, visible)
        rows = visible.global_tokens[:, tf.newaxis, :, tf.newaxis]
        scores, global_scores = (
            ops.exact_scores(*pair, visible) for pair in (heads, global_heads)
        )
        return tf.where(rows, global_scores, scores)
