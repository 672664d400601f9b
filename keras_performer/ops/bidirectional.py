"""Attention to every key, in time and memory linear in the length."""

import tensorflow as tf

from keras_performer.ops.blocks import (
    Blocks,
    Heads,
    normalize,
    size,
    tokens_per_block,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.checks import as_key_mask, check_attention_inputs
from keras_performer.ops.kernels import (
    absorb,
    initial_state,
    num_features,
    plain_call,
)
from keras_performer.ops.parts import (
    each,
    join,
    over_features,
    over_rows,
    per_feature,
    split,
)
from keras_performer.ops.ungauged import ungauged


def bidirectional_attention(query, key, value, kernel, key_mask=None, call=plain_call):
    """Attention of every query to every key, through the features of a kernel.

    For the exponential kernel this equals the two-softmax form, which needs no epsilon:
    one softmax over keys for each feature, one over features for each query. Where a
    sequence has several blocks and nothing in it is unusually large, it is computed
    without the maxima that make a softmax stable (`ungauged.py`).

    Args:
        query: tensor of shape `(B, T, N, H)`.
        key: tensor of shape `(B, S, K, H)`. N is a multiple of K; the query head n
            attends to the key-value head `n // (N // K)`.
        value: tensor of shape `(B, S, K, V)`.
        kernel: an `ExponentialKernel` or `ActivationKernel`. No gradient flows to its
            projection matrix.
        key_mask: optional bool tensor of shape `(B, S)`, true for visible keys.
        call: function of a pass (forward or backward), the kernel, and further
            arguments: tensors, tuples of them, ints or `None`. It returns what
            `pass(kernel, *arguments)` does, and may compile that.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`; 0 where no key is
        visible. Sums are float32, or float64 for float64 inputs.

    Reference:
        arXiv 2009.14794, section 2.2, equations 4-5 (linear attention) and Lemma 1.

    Example:

    >>> from keras_performer import ops
    >>> matrix = ops.orthogonal_gaussian_matrix(8, 2, seed=(0, 1))
    >>> kernel = ops.ExponentialKernel(matrix)
    >>> x = tf.random.stateless_normal((1, 5, 1, 2), seed=(0, 2))
    >>> output = bidirectional_attention(x, x, tf.ones((1, 5, 1, 3)), kernel)
    >>> bool(tf.reduce_all(tf.abs(output - 1) < 1e-6))
    True
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    key_mask = as_key_mask(key_mask)
    check_attention_inputs(query, key, value, key_mask)

    @tf.custom_gradient
    def attend(*qkv):
        output, *saved = call(_forward, kernel, key_mask, *qkv)

        def gradient(doutput):
            return call(_backward, kernel, key_mask, *qkv, output, *saved, doutput)

        return tf.cast(output, query.dtype), gradient

    return attend(query, key, value)


def _forward(kernel, mask, query, key, value):
    return _Bidirectional(query, key, value, kernel, mask).forward(query, key, value)


def _backward(kernel, mask, query, key, value, *saved):
    run = _Bidirectional(query, key, value, kernel, mask)
    return run.backward(query, key, value, *saved)


def absorb_keys(key, value, kernel, key_mask, state):
    """The state of attention after further keys, all of which later queries see.

    With `answer_queries` it is `bidirectional_attention` in two passes over a sequence
    that comes in pieces. Both are differentiated as they stand, so that memory is
    linear in the piece times M.

    Args:
        key: tensor of shape `(B, S, K, H)`.
        value: tensor of shape `(B, S, K, V)`.
        kernel: as in `bidirectional_attention`.
        key_mask: bool tensor of shape `(B, S)`, true for visible keys, or `None`.
        state: from `initial_state` or from earlier keys.

    Returns:
        The state, of the same shapes.

    Example:

    >>> from keras_performer import ops
    >>> kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(8, 2, (0, 1)))
    >>> x = tf.random.stateless_normal((1, 6, 1, 2), seed=(0, 2))
    >>> state = ops.initial_state(1, 1, 8, 2)
    >>> for piece in tf.split(x, 3, axis=1):
    ...     state = absorb_keys(piece, piece, kernel, None, state)
    >>> difference = answer_queries(x, kernel, state) - bidirectional_attention(
    ...     x, x, x, kernel)
    >>> bool(tf.reduce_max(tf.abs(difference)) < 1e-5)
    True
    """
    heads, kernel, r, sums = _one_block(key, key, value, kernel, state)
    mask = None if key_mask is None else key_mask[:, tf.newaxis]
    mask = heads.mask_rows(mask, 0)
    b = kernel.project_keys(heads.key_rows(key[:, tf.newaxis], 0), mask)
    v = with_ones(heads.key_rows(value[:, tf.newaxis], 0))
    return heads.state(*map(join, absorb(kernel, b, v, r, sums, mask)))


def answer_queries(query, kernel, state):
    """Attention of queries to all keys that the state holds.

    Args:
        query: tensor of shape `(B, T, N, H)`.
        kernel: as in `bidirectional_attention`.
        state: from `absorb_keys`.

    Returns:
        Tensor of shape `(B, T, N, V)` in the dtype of `query`.
    """
    key_shape = state[0][:, tf.newaxis]  # (B, 1, K, M): only heads are read
    heads, kernel, r, sums = _one_block(query, key_shape, query, kernel, state)
    a = kernel.project_queries(heads.query_rows(query[:, tf.newaxis], 0))
    features, _ = kernel.query_features(a, r)
    output = normalize(over_features(features, sums))
    return heads.query_block(tf.cast(output, query.dtype))


def _one_block(query, key, value, kernel, state):
    heads = Heads(query, key, value)
    kernel = kernel.astype(heads.dtype)
    r, sums = heads.state_rows(state)
    r, sums = (split(x, kernel.num_parts) for x in (tf.stop_gradient(r), sums))
    return heads, kernel, r, sums


class _Bidirectional:
    """The four loops of one attention; they share sizes, blocks and the mask.

    Each is there for the kernel without a gauge, and again for the one with a gauge,
    whose loops make no step where the other was right.
    """

    def __init__(self, query, key, value, kernel, key_mask):
        self.heads = Heads(query, key, value)
        self.kernel = kernel.astype(self.heads.dtype)
        self.num_features = num_features(kernel, key.shape[3])
        tokens = tokens_per_block(key, self.num_features)
        self.query_blocks = Blocks(size(query, 1), max(tokens // self.heads.group, 1))
        self.key_blocks = Blocks(size(key, 1), tokens)
        self.mask = self.key_blocks.cut_mask(key_mask, size(key, 0))
        # Of one block both kernels would be computed: XLA takes it out of a loop. And
        # on TPUs, used under a strategy, two more arrays of the sequence would be kept.
        several = self.query_blocks.many and self.key_blocks.many
        tries = several and not tf.distribute.has_strategy()
        self.ungauged = ungauged(self.kernel) if tries else None

    def forward(self, query, key, value):
        """The output, and what `backward` needs of it.

        That is the gauge of all keys, parts `(X, 1, M / num_parts)`; the sums of
        values that their features weigh, parts `(X, V + 1, M / num_parts)`; the
        normalizers of queries; and whether there was no need of a gauge.
        """
        queries = self.query_blocks.cut(query)
        keys, values = self.key_blocks.cut(key), self.key_blocks.cut(value)
        arrays = [self.query_blocks.array(self.heads.dtype) for _ in range(2)]
        fits, runs = tf.constant(False), True
        if self.ungauged is not None:
            fits, _, free_sums, *arrays = self._attend(
                self.ungauged,
                self._promising(queries, keys),
                queries,
                keys,
                values,
                *arrays,
            )
            runs = tf.logical_not(fits)
        _, r, sums, *arrays = self._attend(
            self.kernel, runs, queries, keys, values, *arrays
        )
        if self.ungauged is not None:
            sums = each(lambda x, y: tf.where(fits, x, y), free_sums, sums)
        outputs, normalizers = arrays
        output = self.query_blocks.join(outputs, (*query.shape[:3], value.shape[3]))
        return output, r, sums, normalizers.stack(), fits

    def backward(self, query, key, value, output, r, sums, normalizer, fits, doutput):
        """The gradients of query, key and value."""
        kernels = [(self.kernel, True)]
        if self.ungauged is not None:
            kernels = [(self.ungauged, fits), (self.kernel, tf.logical_not(fits))]
        queries, outputs, doutputs = map(
            self.query_blocks.cut, (query, output, doutput)
        )
        keys, values = map(self.key_blocks.cut, (key, value))
        dqueries = self.query_blocks.array(self.heads.dtype)
        dkeys, dvalues = (self.key_blocks.array(self.heads.dtype) for _ in range(2))
        dsums = each(tf.zeros_like, sums)
        for kernel, runs in kernels:
            body = self._query_gradients(
                kernel, queries, outputs, doutputs, r, sums, normalizer
            )
            dqueries, dsums = self.query_blocks.loop(body, (dqueries, dsums), runs=runs)
        for kernel, runs in kernels:
            body = self._key_gradients(kernel, keys, values, r, dsums)
            dkeys, dvalues = self.key_blocks.loop(body, (dkeys, dvalues), runs=runs)
        return (
            self.query_blocks.join_like(dqueries, query),
            self.key_blocks.join_like(dkeys, key),
            self.key_blocks.join_like(dvalues, value),
        )

    def _promising(self, queries, keys):
        """Whether a try without a gauge is unlikely to be for nothing; a scalar."""
        query, key = (tf.cast(x[:, 0], self.heads.dtype) for x in (queries, keys))
        mask = None if self.mask is None else self.mask[:, 0, :, tf.newaxis, tf.newaxis]
        # where a length is unknown there may still be one block
        loops = tf.minimum(self.query_blocks.count, self.key_blocks.count) > 1
        first = self.ungauged.first_fit(query), self.ungauged.first_fit(key, mask)
        return tf.reduce_all([loops, *first])

    def _attend(self, kernel, runs, queries, keys, values, *arrays):
        """Both loops of a forward pass if `runs`; the second if the kernel fits.

        Returns whether it did, the gauge, the sums, and the arrays.
        """
        heads, tried = self.heads, kernel is self.ungauged
        # a loop keeps its shapes; TensorFlow dies optimizing one block of no examples
        shape = (size(keys, 0), heads.num_key_value_heads)
        shape = shape if self.key_blocks.many else (1, 1)

        def absorb_keys(i, fits, r, sums):
            mask = heads.mask_rows(self.mask, i)
            b = kernel.project_keys(heads.key_rows(keys, i), mask)
            v = with_ones(heads.key_rows(values, i))
            r, sums = absorb(kernel, b, v, r, sums, mask)
            if tried:
                fits = tf.logical_and(fits, kernel.keys_fit(b))
            return fits, r, sums

        def answer_queries(i, fits, outputs, normalizers):
            a = kernel.project_queries(heads.query_rows(queries, i))
            features, peak = kernel.query_features(a, r)
            output = over_features(features, sums)
            denominator = output[..., -1:]
            normalizer = kernel.normalizer(peak, denominator)
            if tried:
                fits = tf.logical_and(fits, kernel.queries_fit(denominator))
            return (
                fits,
                outputs.write(i, heads.query_block(normalize(output))),
                normalizers.write(i, normalizer),
            )

        start = initial_state(*shape, self.num_features, size(values, 4), heads.dtype)
        start = (split(x, kernel.num_parts) for x in heads.state_rows(start))
        fits, *state = self.key_blocks.loop(absorb_keys, (runs, *start), runs=runs)
        r, sums = kernel.balance(*state)
        if tried:
            runs = tf.logical_and(fits, kernel.sums_fit(sums))
        fits, *arrays = self.query_blocks.loop(
            answer_queries, (runs, *arrays), runs=runs
        )
        return fits, r, sums, *arrays

    def _query_gradients(self, kernel, queries, outputs, doutputs, r, sums, normalizer):
        """The body of the loop for gradients of queries and of the sums."""
        heads = self.heads

        def body(i, dqueries, dsums):
            a = kernel.project_queries(heads.query_rows(queries, i))
            features = kernel.normalized_query_features(a, r, normalizer[i])
            d = with_normalizer_gradient(
                heads.query_rows(doutputs, i), heads.query_rows(outputs, i)
            )
            d = kernel.divided(d, normalizer[i])
            du = kernel.query_gradient(a, features, per_feature(d, sums))
            dquery = heads.query_block(kernel.pull_queries(du))
            dsums = each(tf.add, dsums, over_rows(d, features))
            return dqueries.write(i, dquery), dsums

        return body

    def _key_gradients(self, kernel, keys, values, r, dsums):
        """The body of the loop for gradients of keys and values."""
        heads = self.heads

        def body(i, dkeys, dvalues):
            mask = heads.mask_rows(self.mask, i)
            y = heads.key_rows(keys, i)
            b = kernel.project_keys(y, mask)
            features = kernel.key_features(b, r, mask)
            v = with_ones(heads.key_rows(values, i))
            du = kernel.key_gradient(b, features, per_feature(v, dsums), mask)
            dv = over_features(features, dsums)
            dkey = kernel.pull_keys(du, y, v, dv)
            return (
                dkeys.write(i, heads.key_block(dkey)),
                dvalues.write(i, heads.key_block(dv[..., :-1])),
            )

        return body
