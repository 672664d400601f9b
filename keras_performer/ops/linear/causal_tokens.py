"""One block of causal attention, token after token.

The stabilizer follows every single key, so that no row underflows however much one key
dwarfs the others. Slow; used for the rare block in which a key rises more than
`kernel.max_rise` above the block's reference. States are not stored: one pass in the
order of the tokens gives the gradients of queries, one against it those of keys and
values.
"""

import functools

import tensorflow as tf

from keras_performer.ops.arrays import new_array
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    over_rows,
    per_feature,
)
from keras_performer.ops.normalizer import normalize
from keras_performer.ops.segments import restarted
from keras_performer.ops.shapes import size
from keras_performer.ops.state import absorb


def forward(kernel, a, b, v, starts, r, sums):
    """Outputs, normalizers and the sums after the block, as the chunked form gives.

    Args:
        kernel: a `Kernel` with a stabilizer.
        a: projected queries, `(X, tokens * group, M / num_parts)`.
        b: projected keys, parts `(X, tokens, M / num_parts)`.
        v: values with a column of ones, `(X, tokens, V + 1)`.
        starts: bool `(X, tokens, 1)`, tokens that start a segment, or `None`.
        r: running maximum before the block, parts `(X, 1, M / num_parts)`.
        sums: sums before the block, parts `(X, V + 1, M / num_parts)`.
    """
    a, b, v = _query_steps(a, v), each(_steps, b), _steps(v)
    starts = None if starts is None else _steps(starts)
    tokens = size(v, 0)

    def token_step(t, r, sums, outputs, normalizers):
        r, sums = _before(t, starts, r, sums)
        r, sums = absorb(kernel, _at(b, t), v[t], r, sums, None)
        features, peak = kernel.query_features(a[t], r)
        output = over_features(features, sums)
        normalizer = kernel.normalizer(peak, output[..., -1:])
        return (
            t + 1,
            r,
            sums,
            outputs.write(t, normalize(output)),
            normalizers.write(t, normalizer),
        )

    arrays = [
        new_array(v.dtype, tokens, (size(a, 1), size(a, 2), dim))
        for dim in (size(v, 3) - 1, 1)
    ]
    _, _, sums, outputs, normalizers = tf.while_loop(
        lambda t, *_: t < tokens,
        token_step,
        (tf.constant(0), r, sums, *arrays),
        parallel_iterations=1,
    )
    rows = size(a, 0) * size(a, 2)
    return (
        _rows(outputs, rows, size(v, 3) - 1),
        _rows(normalizers, rows, 1),
        sums,
    )


def backward(kernel, a, b, v, starts, d, normalizer, r, sums, dsums):
    """Gradients of projected queries and keys, values with their ones, and the sums.

    Args:
        kernel, a, b, v, starts, r, sums: as in `forward`.
        d: gradient of the sums of each row, times its normalizer,
            `(X, tokens * group, V + 1)`.
        normalizer: what `forward` returned, `(X, tokens * group, 1)`.
        dsums: gradient of the sums after the block, parts.
    """
    a, d, normalizer = (_query_steps(x, v) for x in (a, d, normalizer))
    b, v = each(_steps, b), _steps(v)
    starts = None if starts is None else _steps(starts)
    tokens = size(v, 0)

    def query_step(t, r, sums, dqueries, maxima):
        maxima = each(lambda maximum, r: maximum.write(t, r), maxima, r)
        r, sums = _before(t, starts, r, sums)
        r_new, sums = absorb(kernel, _at(b, t), v[t], r, sums, None)
        p = kernel.normalized_query_features(a[t], r_new, normalizer[t])
        da = kernel.query_gradient(a[t], p, per_feature(d[t], sums))
        return t + 1, r_new, sums, dqueries.write(t, da), maxima

    def key_step(t, r_new, dsums, dkeys, dvalues):
        p = kernel.normalized_query_features(a[t], r_new, normalizer[t])
        dsums = each(tf.add, dsums, over_rows(d[t], p))
        e = kernel.key_features(_at(b, t), r_new, None)
        db = kernel.key_gradient(_at(b, t), e, per_feature(v[t], dsums), None)
        dkeys = each(lambda dkey, x: dkey.write(t, x), dkeys, db)
        dv = over_features(e, dsums)
        r = _at(maxima, t)
        dsums = each(tf.multiply, dsums, kernel.rescale(r, r_new))
        _, dsums = _before(t, starts, r, dsums)
        return t - 1, r, dsums, dkeys, dvalues.write(t, dv)

    new_array = functools.partial(tf.TensorArray, v.dtype, size=tokens)
    maxima, dkeys = (tuple(new_array() for _ in r) for _ in range(2))
    _, r, _, dqueries, maxima = tf.while_loop(
        lambda t, *_: t < tokens,
        query_step,
        (tf.constant(0), r, sums, new_array(), maxima),
        parallel_iterations=1,
    )
    maxima = each(lambda maximum: maximum.stack(), maxima)
    _, _, dsums, dkeys, dvalues = tf.while_loop(
        lambda t, *_: t >= 0,
        key_step,
        (tf.convert_to_tensor(tokens - 1), r, dsums, dkeys, new_array()),
        parallel_iterations=1,
    )
    return (
        _rows(dqueries, size(a, 0) * size(a, 2), a.shape[3]),
        each(lambda dkey, x: _rows(dkey, tokens, x.shape[3]), dkeys, b),
        _rows(dvalues, tokens, size(v, 3)),
        dsums,
    )


def _before(t, starts, r, sums):
    """The state before the token t, of its segment; or the gradient of such sums."""
    return (r, sums) if starts is None else restarted(starts[t], r, sums)


def _at(parts, t):
    """Parts of the token t."""
    return each(lambda x: x[t], parts)


def _steps(x):
    """`(X, tokens, dim)` to `(tokens, X, 1, dim)`."""
    return tf.transpose(x, (1, 0, 2))[:, :, tf.newaxis]


def _query_steps(x, values):
    """`(X, tokens * group, dim)` to `(tokens, X, group, dim)`."""
    tokens = size(values, 1)
    x = tf.reshape(x, (-1, tokens, size(x, 1) // tokens, size(x, 2)))
    return tf.transpose(x, (1, 0, 2, 3))


def _rows(array, rows, dim):
    """An array of `(X, group, dim)` steps as `(X, tokens * group, dim)`."""
    return tf.reshape(tf.transpose(array.stack(), (1, 0, 2, 3)), (-1, rows, dim))
