"""One block of causal attention, token after token.

The gauge follows every single key, so that no row underflows however much one key
dwarfs the others. Slow; used for the rare block in which a key rises more than
`kernel.max_rise` above the block's reference. States are not stored: one pass in the
order of the tokens gives the gradients of queries, one against it those of keys and
values.
"""

import tensorflow as tf

from keras_performer.ops.blocks import normalize, size


def forward(kernel, a, b, v, r, sums):
    """Outputs, normalizers and the sums after the block, as the chunked form gives.

    Args:
        kernel: an `ExponentialKernel`.
        a: projected queries, `(X, tokens * group, M)`.
        b: projected keys, `(X, tokens, M)`.
        v: values with a column of ones, `(X, tokens, V + 1)`.
        r: running maximum before the block, `(X, 1, M)`.
        sums: sums before the block, `(X, V + 1, M)`.
    """
    a, (b, v) = _query_steps(a, b), (_steps(x) for x in (b, v))
    tokens = size(b, 0)

    def step(t, r, sums, outputs, normalizers):
        r, sums = _absorb(kernel, b[t], v[t], r, sums)
        features, peak = kernel.query_features(a[t], r)
        output = tf.matmul(features, sums, transpose_b=True)
        normalizer = kernel.normalizer(peak, output[..., -1:])
        return (
            t + 1,
            r,
            sums,
            outputs.write(t, normalize(output)),
            normalizers.write(t, normalizer),
        )

    arrays = [tf.TensorArray(b.dtype, size=tokens) for _ in range(2)]
    _, _, sums, outputs, normalizers = tf.while_loop(
        lambda t, *_: t < tokens,
        step,
        (tf.constant(0), r, sums, *arrays),
        parallel_iterations=1,
    )
    rows = size(a, 0) * size(a, 2)
    return (
        _rows(outputs, rows, size(v, 3) - 1),
        _rows(normalizers, rows, 1),
        sums,
    )


def backward(kernel, a, b, v, d, normalizer, r, sums, dsums):
    """Gradients of projected queries and keys, values with their ones, and the sums.

    Args:
        kernel, a, b, v, r, sums: as in `forward`.
        d: gradient of the sums of each row, times its normalizer,
            `(X, tokens * group, V + 1)`.
        normalizer: what `forward` returned, `(X, tokens * group, 1)`.
        dsums: gradient of the sums after the block.
    """
    a, d, normalizer = (_query_steps(x, b) for x in (a, d, normalizer))
    b, v = _steps(b), _steps(v)
    tokens, features = size(b, 0), b.shape[3]

    def ahead(t, r, sums, das, maxima):
        r_new, sums = _absorb(kernel, b[t], v[t], r, sums)
        p = kernel.normalized_query_features(a[t], r_new, normalizer[t])
        da = kernel.query_gradient(a[t], p, tf.matmul(d[t], sums), normalizer[t])
        return t + 1, r_new, sums, das.write(t, da), maxima.write(t, r)

    def back(t, r_new, dsums, dbs, dvs):
        p = kernel.normalized_query_features(a[t], r_new, normalizer[t])
        dsums += tf.matmul(d[t], p, transpose_a=True)
        e = kernel.key_features(b[t], r_new, None)
        db = kernel.key_gradient(b[t], e, tf.matmul(v[t], dsums), None)
        dv = tf.matmul(e, dsums, transpose_b=True)
        r = maxima[t]
        dsums *= kernel.rescale(r, r_new)
        return t - 1, r, dsums, dbs.write(t, db), dvs.write(t, dv)

    arrays = [tf.TensorArray(b.dtype, size=tokens) for _ in range(4)]
    _, r, _, das, maxima = tf.while_loop(
        lambda t, *_: t < tokens,
        ahead,
        (tf.constant(0), r, sums, *arrays[:2]),
        parallel_iterations=1,
    )
    maxima = maxima.stack()
    _, _, dsums, dbs, dvs = tf.while_loop(
        lambda t, *_: t >= 0,
        back,
        (tf.convert_to_tensor(tokens - 1), r, dsums, *arrays[2:]),
        parallel_iterations=1,
    )
    return (
        _rows(das, size(a, 0) * size(a, 2), features),
        _rows(dbs, tokens, features),
        _rows(dvs, tokens, size(v, 3)),
        dsums,
    )


def _absorb(kernel, b, v, r, sums):
    """The state after one more key `(X, 1, M)` with its value `(X, 1, V + 1)`."""
    r_new = kernel.running_max(r, b)
    features = kernel.key_features(b, r_new, None)
    sums = sums * kernel.rescale(r, r_new) + tf.matmul(v, features, transpose_a=True)
    return r_new, sums


def _steps(x):
    """`(X, tokens, dim)` to `(tokens, X, 1, dim)`."""
    return tf.transpose(x, (1, 0, 2))[:, :, tf.newaxis]


def _query_steps(x, keys):
    """`(X, tokens * group, dim)` to `(tokens, X, group, dim)`."""
    tokens = size(keys, 1)
    x = tf.reshape(x, (-1, tokens, size(x, 1) // tokens, size(x, 2)))
    return tf.transpose(x, (1, 0, 2, 3))


def _rows(array, rows, dim):
    """An array of `(X, group, dim)` steps as `(X, tokens * group, dim)`."""
    return tf.reshape(tf.transpose(array.stack(), (1, 0, 2, 3)), (-1, rows, dim))
