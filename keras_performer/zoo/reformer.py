"""Reformer: attention within buckets of locality-sensitive hashing.

Tokens are sorted by bucket, and by position within a bucket. A query then sees the keys
near it in this order: local attention with other neighbours in each round of hashing.
"""

import typing

import keras
import tensorflow as tf

from keras_performer import ops
from keras_performer.layers import arguments
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.performer import add_drawn_weight, draw_once, seed_or_random
from keras_performer.ops.blocks import block_of
from keras_performer.ops.checks import check_attention_inputs, check_window
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.local.loops import Local
from keras_performer.ops.local.recent import reach_within
from keras_performer.ops.normalizer import joined
from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import TensorLike, compute_dtype, size
from keras_performer.ops.visibility import Visibility


def lsh_buckets(x: TensorLike, rotations: TensorLike) -> tf.Tensor:
    """Returns the bucket of each vector in each round, argmax([x R; -x R]).

    Vectors of similar direction are likely to share a bucket; norms do not matter.

    Args:
        x: tensor of shape `(B, T, N, H)`.
        rotations: tensor of shape `(rounds, N, H, buckets / 2)`, the matrices R of
            independent Gaussian numbers.

    Returns:
        int32 tensor of shape `(B, T, N, rounds)`, from 0 to `buckets - 1`. It has no
        gradient.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, section 2; Andoni et al. 2015,
        arXiv 1509.02897.

    Example:

    >>> x = [[[[3.0, 0.0]], [[0.0, -5.0]]]]
    >>> lsh_buckets(x, tf.eye(2)[tf.newaxis, tf.newaxis])[0, :, 0, 0].numpy().tolist()
    [0, 3]
    """
    x = tf.stop_gradient(tf.convert_to_tensor(x))
    x = tf.cast(x, compute_dtype(x))
    rotations = tf.cast(rotations, x.dtype)
    half = rotations.shape[-1]

    def buckets_of(rotation):
        rotated = tf.einsum("btnh,nhc->btnc", x, rotation)
        largest = tf.argmax(rotated, -1, output_type=tf.int32)
        smallest = tf.argmin(rotated, -1, output_type=tf.int32)
        is_minus = -tf.reduce_min(rotated, -1) > tf.reduce_max(rotated, -1)
        return tf.where(is_minus, half + smallest, largest)

    # one round after another, because each needs `half` numbers for every token
    buckets = tf.map_fn(buckets_of, rotations, fn_output_signature=tf.int32)
    return tf.transpose(buckets, (1, 2, 3, 0))


def codes_of_tokens(buckets, window, visible):
    """Codes of tokens, which differ by less than `window` for near tokens of a bucket.

    `buckets` are `(B, T, N, rounds)`. Tokens of different segments share no bucket, and
    masked tokens are in no bucket. `window` is at most the length, if that is static.

    Returns `(seen, codes, order)`, with X = B * N. `seen` is bool `(X, T)`, false for
    masked tokens. `codes` are int `(X, T, rounds)`; they differ by the positions
    between two tokens of a bucket, and by at least `window` for tokens of different
    buckets. `order` is int32 `(X, rounds, T)`: tokens sorted by bucket and position,
    masked ones last.
    """
    buckets = tf.transpose(tf.cast(buckets, tf.int32), (0, 2, 3, 1))
    heads, rounds = buckets.shape[1:3]
    if visible.starts is not None:
        number = segment_numbers(visible.starts)[:, tf.newaxis, tf.newaxis]
        buckets += number * (tf.reduce_max(buckets) + 1)
    seen = visible.key_mask
    if seen is None:
        seen = tf.ones_like(buckets[:, 0, 0], tf.bool)
    else:
        mask = seen[:, tf.newaxis, tf.newaxis]
        buckets = tf.where(mask, buckets, tf.int32.max)
    length = size(buckets, 3)
    buckets = tf.reshape(buckets, (num_rows(buckets, heads), rounds, length))
    order = tf.argsort(buckets, stable=True)
    found = tf.gather(buckets, order, batch_dims=2)
    is_next = tf.cast(found[..., 1:] != found[..., :-1], tf.int32)
    group = tf.pad(tf.cumsum(is_next, axis=2), [[0, 0], [0, 0], [1, 0]])[..., :length]
    fits = isinstance(length, int) and length * (window + 1) < tf.int32.max
    dtype = tf.int32 if fits else tf.int64
    codes = tf.cast(tf.range(length), dtype) + window * tf.cast(group, dtype)
    codes = tf.gather(codes, tf.argsort(order), batch_dims=2)
    return tf.repeat(seen, heads, axis=0), tf.transpose(codes, (0, 2, 1)), order


def num_rows(x, heads):
    """Batch size times heads for a reshape; -1 for an unknown batch size."""
    return -1 if x.shape[0] is None else x.shape[0] * heads


def lsh_attention(
    query: TensorLike,
    value: TensorLike,
    buckets: TensorLike,
    sliding_window: int,
    key_mask: TensorLike | Visibility | None = None,
    causal: bool = False,
) -> tf.Tensor:
    """Softmax attention to other tokens that share a bucket in some round.

    Keys are the queries divided by their norms. Query i sees key j if in some round
    both share a bucket, fewer than `sliding_window` positions apart. Only visible
    tokens of this bucket count as positions. A key counts once, even if several rounds
    find it. A query that sees no other key returns its own value.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        value: tensor of shape `(B, T, N, V)`.
        buckets: int tensor of shape `(B, T, N, rounds)`, the result of `lsh_buckets`.
        sliding_window: int W. A query sees keys less than W positions away in its
            bucket.
        key_mask: optional bool tensor of shape `(B, T)`, true for visible tokens; or a
            `Visibility`. Masked tokens also see nothing, because keys are queries.
            Defaults to `None`.
        causal: bool, hide later keys. Defaults to `False`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`; 0 for masked tokens.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, equations 4, 6 and 12. The
        window replaces the chunks of equation 5. Tokens of other buckets, and later
        tokens, move the borders of those chunks.

    Example:

    >>> x = tf.constant([[[[2.0]], [[-1.0]], [[1.0]], [[3.0]]]])
    >>> buckets = tf.cast(x < 0, tf.int32)
    >>> seen = lsh_attention(x, x, buckets, sliding_window=2, causal=True)
    >>> seen[0, :, 0, 0].numpy().tolist()
    [2.0, -1.0, 2.0, 1.0]
    """
    query, value = (tf.convert_to_tensor(x) for x in (query, value))
    visible = Visibility.of(key_mask, causal)
    check_attention_inputs(query, query, value, visible)
    check_window("sliding_window", sliding_window, query, value)
    shape = tf.convert_to_tensor(buckets).shape
    if shape.rank != 4 or not shape[:3].is_compatible_with(query.shape[:3]):
        raise ValueError(
            "buckets must have shape (batch, length, heads, rounds), as lsh_buckets "
            f"makes them from the query. Received: buckets of shape {tuple(shape)} and "
            f"query of shape {tuple(query.shape)}"
        )
    window = reach_within(sliding_window, query, None) + 1  # at most a static length
    tokens = codes_of_tokens(buckets, window, visible)
    x, v = _rows(query), _rows(value)
    unit = tf.math.l2_normalize(tf.cast(x, compute_dtype(x)), -1)
    attended, log_sums = attend_in_rounds(x, unit, v, tokens, window, visible.causal)
    alone, seen = log_sums < EMPTY / 2, tokens[0][..., tf.newaxis, tf.newaxis]
    attended = tf.where(alone, tf.cast(v, attended.dtype), attended)
    attended = tf.where(seen, attended, tf.zeros_like(attended))
    return tf.cast(_from_rows(attended, value), query.dtype)


def _rows(x):
    """Moves heads to the batch axis: `(B, T, N, dim)` to `(B N, T, 1, dim)`."""
    shape = num_rows(x, x.shape[2]), size(x, 1), 1, size(x, 3)
    return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), shape)


def _from_rows(rows, like):
    """Inverts `_rows`; the result has the shape of `like`."""
    shape = size(like, 0), like.shape[2], size(like, 1), size(like, 3)
    return tf.transpose(tf.reshape(rows, shape), (0, 2, 1, 3))


def attend_in_rounds(query, key, value, tokens, window, causal):
    """Computes attention to near tokens of the same buckets, each once, in all rounds.

    The backward pass keeps only inputs and outputs, and recomputes weights. Inputs have
    one head, `(X, T, 1, dim)`; `tokens` are from `codes_of_tokens` for this window.
    Returns the output `(X, T, 1, V)` and log-sums `(X, T, 1, 1)`, EMPTY for queries
    that see no keys; float32, or float64 for float64 inputs.
    """
    seen, codes, order = tokens
    options = window - 1, 0, window, causal, None
    place, rounds = tf.argsort(order), order.shape[1]

    def sort(index, *tensors):
        indices = tf.gather(order, index, axis=1)
        return [tf.gather(x, indices, batch_dims=1) for x in tensors]

    def unsort(index, tensors):
        indices = tf.gather(place, index, axis=1)
        return [tf.gather(x, indices, batch_dims=1) for x in tensors]

    def sorted_loops(index, *inputs):
        *heads, own_seen, own_codes = sort(index, *inputs, seen, codes)
        # so that gradients add up in the dtype of the loops
        heads = [tf.cast(x, compute_dtype(*inputs)) for x in heads]
        return Bucketed(options, *heads, own_seen, own_codes, index), heads

    def in_rounds(body, state):
        return tf.while_loop(
            lambda index, *_: index < rounds,
            lambda index, *state: (index + 1, *body(index, *state)),
            (tf.constant(0), *state),
            parallel_iterations=1,
        )[1:]

    @custom_gradient
    def attention(*inputs):
        dtype = compute_dtype(*inputs)

        def forward(index, *ends):
            loops, (x, *_) = sorted_loops(index, *inputs)
            return joined([ends, unsort(index, loops.forward(x))])

        nothing = tf.zeros_like(value, dtype)
        no_keys = tf.zeros_like(value[..., :1], dtype) + tf.constant(EMPTY, dtype)
        ends = in_rounds(forward, (nothing, no_keys))

        def gradient(doutput, _):
            def backward(index, *totals):
                loops, heads = sorted_loops(index, *inputs)
                given = sort(index, *ends, doutput)
                gradients = unsort(index, loops.backward(*heads, None, *given, None))
                return [total + dx for total, dx in zip(totals, gradients)]

            totals = in_rounds(backward, [tf.zeros_like(x, dtype) for x in inputs])
            return [tf.cast(total, x.dtype) for total, x in zip(totals, inputs)]

        return ends, gradient

    return attention(query, key, value)


class Bucketed(Local):
    """Loops of `Local` over tokens sorted by bucket, in the round `index`.

    Codes `(X, T, rounds)` have the same order. Pairs of earlier rounds are hidden.
    """

    def __init__(self, options, query, key, value, seen, codes, index):
        super().__init__(options, query, key, value, seen)
        self.window = options[2]
        self.index = index
        self.query_codes = self.blocks.cut(codes)
        self.key_codes = self.halo.pad(codes)

    def visible_pairs(self, i, numbers):
        queries = self.band.chunks(block_of(self.query_codes, i))
        keys = self.band.spans(self.halo.read(self.key_codes, i))

        def near_in(index):
            query, key = (tf.gather(x, index, axis=3) for x in (queries, keys))
            distance = query[..., tf.newaxis] - key[..., tf.newaxis, :]
            if self.causal:
                return tf.logical_and(distance > 0, distance < self.window)
            return tf.logical_and(distance != 0, tf.abs(distance) < self.window)

        here = near_in(self.index)
        _, before = tf.while_loop(
            lambda index, _: index < self.index,
            lambda index, before: (index + 1, tf.logical_or(before, near_in(index))),
            (tf.constant(0), tf.zeros_like(here)),
            parallel_iterations=1,
        )
        return tf.logical_and(here, tf.logical_not(before))


@keras.saving.register_keras_serializable(package="keras_performer")
class ReformerAttention(AttentionLayer):
    """Reformer self-attention within buckets of locality-sensitive hashing.

    One dense layer makes queries and keys: the key of a token is its query divided by
    the query's norm. In each round of hashing, random rotations put tokens of similar
    direction into one bucket, `argmax([x R; -x R])`. A query attends to the other
    tokens of its buckets, each once, over all rounds, and to itself only if there is no
    other.

    The layer differs from the paper, and from code based on the paper, so that tokens
    do not disturb each other:

    - In a large bucket a query sees keys fewer than `sliding_window` positions away.
      The paper cuts the sorted tokens into chunks, whose borders move with tokens of
      other buckets and with later tokens.
    - The number of buckets does not depend on the length, which changes with padding
      and with every generated token.
    - A token counts once, however many rounds find it.
    - Rotations are sampled once and saved, so training, recomputed gradients and
      inference hash alike.

    So with `causal=True` no later token changes an earlier output, except by rounding:
    sorting more tokens can change the order of sums.

    Masked tokens are left out as queries and as keys. They see nothing, no query sees
    them, and they take up no positions.

    Args:
        num_heads: int N, number of attention heads.
        key_dim: int H, size of each head of query and key.
        num_hashes: int, rounds of hashing; cost grows in proportion. With 8 the paper
            almost matches full attention (section 5). Defaults to `8`.
        num_buckets: int, even, best near `2 * length / sliding_window` (section 2). 64
            suits 4,096 tokens. Defaults to `64`.
        sliding_window: int W. A query sees keys less than W positions away in its
            bucket. The paper's chunks have 128 tokens (section 5). Defaults to `128`.
        **kwargs: further arguments, as in `PerformerAttention`, such as `causal`,
            `dropout` and `rotary`, which acts before hashing. `num_key_value_heads`
            must be `num_heads`. Do not use `qk_norm`: keys have norm 1 already, and the
            norms of queries are learned.

    Call arguments and returns: as in `PerformerAttention`, but without `state` and
    `return_state`; `value` and `key` must be the query, or be left out.

    Raises:
        ValueError: if a value or key is not the query, and as in `AttentionLayer`.

    Reference:
        Kitaev et al. 2020, Reformer, arXiv 2001.04451, section 2 and appendix A.

    Example:

    >>> layer = ReformerAttention(num_heads=2, key_dim=8, num_buckets=4, causal=True)
    >>> layer(keras.ops.ones((1, 100, 16))).shape
    TensorShape([1, 100, 16])
    """

    projections = ("query", "value")
    shared_query_key = True
    supports_segments = True
    supports_cross_attention = False
    cost = "L log L"

    def __init__(
        self,
        *args: typing.Any,
        sliding_window: int = 128,
        num_hashes: int = 8,
        num_buckets: int = 64,
        **kwargs: typing.Any,
    ) -> None:
        if kwargs.get("qk_norm"):
            raise ValueError(
                "ReformerAttention divides keys by their norms, and learns the norms "
                "of queries: use qk_norm=False. Received: "
                f"qk_norm={kwargs['qk_norm']!r}"
            )
        super().__init__(*args, **kwargs)
        if self.num_key_value_heads != self.num_heads:
            raise ValueError(
                "ReformerAttention uses queries as keys: num_key_value_heads must "
                "be num_heads, or None. Received: num_key_value_heads="
                f"{self.num_key_value_heads}, num_heads={self.num_heads}"
            )
        self.num_hashes = arguments.positive_int("num_hashes", num_hashes)
        self.num_buckets = arguments.positive_int("num_buckets", num_buckets)
        if self.num_buckets % 2:
            raise ValueError(
                "num_buckets must be even, as half of the buckets are opposite to the "
                f"others. Received: num_buckets={num_buckets}"
            )
        self.sliding_window = arguments.positive_int("sliding_window", sliding_window)

    def build_attention(self):
        seed = seed_or_random(self.seed)
        half = self.num_buckets // 2
        shape = self.num_hashes, self.num_heads, half, self.key_dim

        def draw():
            with tf.device("CPU:0"):  # the same numbers on all kinds of devices
                rows = shape[0] * shape[1] * shape[2]
                flat = ops.gaussian_matrix(rows, self.key_dim, (seed, 0))
                return tf.transpose(tf.reshape(flat, shape), (0, 1, 3, 2))

        self.rotations = add_drawn_weight(self, "rotations", draw_once(draw))

    if not typing.TYPE_CHECKING:

        def __call__(self, query, value=None, key=None, *args, **kwargs):
            # here, because Keras passes copies of these tensors to `call`
            value, key = (None if x is query else x for x in (value, key))
            return super().__call__(query, value, key, *args, **kwargs)

    def read(self, query, value=None, key=None, *args, **kwargs):
        given = [n for n, x in (("value", value), ("key", key)) if x is not None]
        if given:
            raise ValueError(
                "ReformerAttention uses queries as keys, so it has no cross-attention: "
                "call it with the query only, or pass the same tensor as value and "
                f"key. Received: {' and '.join(given)} other than the query"
            )
        return super().read(query, None, None, *args, **kwargs)

    def attend(self, query, key, value, visible, state=None, training=None):
        buckets = lsh_buckets(query, tf.convert_to_tensor(self.rotations))
        options = buckets, self.sliding_window, visible
        return lsh_attention(query, value, *options), None

    def outline(self, query, key, value, visible, state=None, training=None):
        return value, None
