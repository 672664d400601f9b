"""The base of kernels, weight functions `phi(q) . phi(k)`."""

import copy
import typing
from collections.abc import Mapping

import tensorflow as tf

from keras_performer.ops.shapes import TensorLike, masked, size, sizes

# Stands for log(0): far below the logarithm of any weight, and finite in float32.
EMPTY = -1e30


class Kernel:
    """Base class of kernels: the methods that the attention loops call.

    A subclass must define `query_features` and `key_features`. The other methods have
    defaults that are right for any features: they multiply queries and keys by the
    projection matrix, take gradients from a tape, and do not scale the features.
    `ExponentialKernel` overrides most defaults, because its features need a stabilizer.

    Shapes, where X = batch size times key-value heads (the batch varies slowest). The
    loops also compute features and gradients of chunks, `(X, chunks, rows, ...)`.

        x, y    queries or keys of a block, `(X, rows, H)`
        a       the result of `project_queries` for x, `(X, rows, ...)`
        b       the result of `project_keys` for y, `(X, tokens, ...)`
        phi     features, `(X, rows, M)`
        r       the stabilizer, `(X, 1, M)`: features of all keys so far are divided by
                exp(r). Results do not depend on r, so it has no gradient. Kernels
                without a stabilizer change r with gates only
        sums    sums over keys: values with a column of ones, weighted by features,
                `(X, V + 1, M)`
        mask    bool tensor `(X, tokens, 1)`, true for visible keys, or `None`

    Attributes without tensors are options. They must be hashable: class and options
    identify a kernel in compiled functions. Copies with other parameters or another
    dtype keep the options. Put tensors into the parameters, and compute tensors derived
    from parameters in `_hold`. A subclass with a stabilizer must define the gradients
    of features.

    Args:
        parameters: dict of named tensors of any shape; a first axis may be K key-value
            heads. `"projection_matrix"`, if present, is `(M, H)` or `(K, M, H)`.
        trainable: bool, whether gradients flow to the parameters. Defaults to `False`.

    Example:

    >>> class SquaredKernel(Kernel):
    ...     def query_features(self, a, r):
    ...         return a**2, tf.zeros_like(a[..., :1])
    ...     def key_features(self, b, r, mask):
    ...         return b**2 if mask is None else tf.where(mask, b**2, 0)
    >>> kernel = SquaredKernel({"projection_matrix": tf.constant([[1.0, 1.0]])})
    >>> kernel.num_features(head_dim=2)
    1
    """

    # Replaces the options in `identity`, unless it is `None`.
    stands_for: typing.Any = None
    # A chunk is rare if a log-feature of its keys exceeds the reference by this much.
    # `None` for kernels without a stabilizer, which have no rare chunks.
    max_rise: float | None = None

    def __init__(
        self, parameters: Mapping[str, TensorLike], trainable: bool = False
    ) -> None:
        self.trainable = trainable
        self._hold(tf.nest.map_structure(tf.convert_to_tensor, parameters))

    # -- Features: methods that a subclass must define.

    def query_features(self, a, r):
        """Returns features of queries, and the logarithm of their common divisor.

        Returns:
            `(phi, peak)`; peak is `(X, rows, 1)`, zeros for undivided features.
        """
        raise NotImplementedError(f"{type(self).__name__} must define query_features.")

    def key_features(self, b, r, mask):
        """Returns features of keys, divided by exp(r); 0 where the mask is false."""
        raise NotImplementedError(f"{type(self).__name__} must define key_features.")

    # -- Projections.

    def project_queries(self, x):
        if self.projection_matrix is None:
            return x * scale(x)
        return flat_matmul(x, self._weights, transpose=True)

    def project_keys(self, y, mask):
        # a huge masked key could have infinite features
        return self.project_queries(masked(y, mask))

    def pull_queries(self, x, da):
        """Returns the gradient of x, and a list of gradients for `trained`."""
        return self._pull(lambda kernel, x: kernel.project_queries(x), x, da)

    def pull_keys(self, y, mask, db, v, dv):
        """Returns the gradient of y, and a list of gradients for `trained`.

        Args:
            y, mask: keys of a block, and their mask.
            db: gradient of b.
            v: values with a column of ones, `(X, tokens, V + 1)`.
            dv: gradient of v. For each key, the sum of `v * dv` equals the sum of the
                features times their gradients.
        """
        return self._pull(lambda kernel, y: kernel.project_keys(y, mask), y, db)

    # -- Weights of single pairs.

    def pair_weights(self, p, e):
        """Returns weights `(..., rows, tokens)` from features of queries and keys."""
        return tf.matmul(p, e, transpose_b=True)

    def pull_pairs(self, p, e, dweights):
        """Returns gradients of p and e, for `query_gradient` and `key_gradient`.

        Only the resulting gradients of a and b must be right. If some features are
        functions of others, the gradients of single features are not unique.
        """
        return tf.matmul(dweights, e), tf.matmul(dweights, p, transpose_a=True)

    # -- Gradients of features.

    def query_gradient(self, a, features, dfeatures):
        """Returns the gradient of a, for features from `normalized_query_features`."""
        return _gradients(lambda a: self.query_features(a, None)[0], [a], dfeatures)[0]

    def key_gradient(self, b, features, dfeatures, mask):
        """Returns the gradient of b."""
        return _gradients(lambda b: self.key_features(b, None, mask), [b], dfeatures)[0]

    def normalizer(self, peak, denominator):
        """Returns the normalizer as the backward pass takes it, here 1 / the sum."""
        return tf.math.divide_no_nan(tf.ones_like(denominator), denominator)

    def log_normalizer(self, normalizer):
        """Returns log |sum of weights|; `EMPTY` where the sum is 0.

        Args:
            normalizer: result of `normalizer`.
        """
        visible = normalizer != 0
        size = tf.abs(tf.where(visible, normalizer, 1.0))
        return tf.where(visible, -tf.math.log(size), EMPTY)

    def sign(self, normalizer):
        """Returns the signs of the sums of weights; features may be negative."""
        return tf.sign(normalizer)

    def normalizer_of(self, log_sums):
        """Inverts `log_normalizer`."""
        found = log_sums > EMPTY
        log = masked(log_sums, found)
        return masked(tf.exp(-log), found)

    def log_left_out(self, query):
        """Returns the logarithm of a factor that the features of a query leave out.

        The factor cancels in the average over keys. It matters only if weights of
        another kind, such as exact weights, enter the same average.

        Args:
            query: tensor `(..., H)`.

        Returns:
            Tensor `(..., 1)`.
        """
        return tf.zeros_like(query[..., :1])

    def pull_left_out(self, query, dlog):
        """Returns the gradient of `log_left_out`, of the shape of the query."""
        return _gradients(self.log_left_out, [query], dlog)[0]

    def normalized_query_features(self, a, r, normalizer):
        """Returns features divided by the normalizer, unless `divided` divides."""
        return self.query_features(a, r)[0]

    def divided(self, d, normalizer):
        """Returns the gradients d of weighted sums, divided by the sum of weights."""
        return d * normalizer

    # -- The stabilizer.

    def running_max(self, r, b):
        """Returns the stabilizer after another block of keys."""
        return r

    def rescale(self, old, new):
        """Returns factors that convert sums from the old stabilizer to the new one."""
        return tf.ones_like(old)

    # -- Parameters and conversions.

    @property
    def projection_matrix(self):
        """The matrix W, or `None` if there is none."""
        return self.parameters.get("projection_matrix")

    def num_features(self, head_dim: int) -> int:
        """Returns the number M of features for head size `head_dim`, an int."""
        matrix = self.projection_matrix
        return head_dim if matrix is None else matrix.shape[-2]

    @property
    def trained(self):
        """List of the parameters that gradients flow to."""
        return tf.nest.flatten(self.parameters) if self.trainable else []

    def with_trained(self, tensors):
        """Returns this kernel with other tensors as `trained`."""
        if not tensors:
            return self
        return self.with_parameters(tf.nest.pack_sequence_as(self.parameters, tensors))

    def with_parameters(self, parameters):
        """Returns this kernel with other parameters."""
        kernel = copy.copy(self)
        kernel._hold(parameters)
        return kernel

    def with_gradients(self):
        """Returns a copy of this kernel whose parameters get gradients."""
        kernel = copy.copy(self)
        kernel.trainable = True
        return kernel

    def astype(self, dtype):
        """Returns this kernel in `dtype`; stops gradients unless it is trainable."""

        def convert(x):
            x = tf.cast(x, dtype) if x.dtype.is_floating else x
            return x if self.trainable else tf.stop_gradient(x)

        return self.with_parameters(tf.nest.map_structure(convert, self.parameters))

    def blank(self):
        """Returns this kernel without its tensors, for `with_parameters`."""
        kernel = copy.copy(self)
        for name, value in vars(self).items():
            has_tensors = any(map(tf.is_tensor, tf.nest.flatten(value)))
            if name == "parameters" or has_tensors:
                delattr(kernel, name)
        return kernel

    def made_by(self, maker):
        """Returns this kernel with a maker, which replaces the options in `identity`.

        Args:
            maker: hashable; kernels of one class with equal makers are equal.
        """
        kernel = copy.copy(self)
        kernel.stands_for = maker
        return kernel

    def identity(self):
        """Returns a hashable key, equal for kernels that differ only in parameters."""
        if self.stands_for is not None:
            return (type(self), self.trainable, self.stands_for)
        options = sorted(vars(self.blank()).items(), key=lambda item: item[0])
        identity = (type(self), *options)
        try:
            hash(identity)
        except TypeError as error:
            raise TypeError(
                "The attributes of a kernel must be tensors or hashable (numbers, "
                "strings, tuples, functions): kernels with equal attributes share "
                "compiled functions. Change them, or use jit_compile=False. Received: "
                f"{type(self).__name__} with {dict(options)}"
            ) from error
        return identity

    def check_heads(self, num_key_value_heads):
        """Raises a `ValueError` unless the parameters fit the number of heads."""
        matrix = self.projection_matrix
        if matrix is not None and matrix.shape.rank == 3:
            check_axis_of_heads("projection_matrix", matrix, num_key_value_heads)

    def _hold(self, parameters):
        """Stores the parameters, and the scaled matrix that blocks multiply by."""
        self.parameters = parameters
        matrix = parameters.get("projection_matrix")
        self._weights = None if matrix is None else matrix * scale(matrix)

    def _pull(self, project, x, upstream):
        def projected(x, *trained):
            return project(self.with_trained(trained), x)

        inputs = [tf.identity(tensor) for tensor in (x, *self.trained)]
        dx, *dtrained = _gradients(projected, inputs, upstream)
        return dx, dtrained


def scale(x):
    """Returns H^(-1/4), the square root of the softmax's factor 1 / sqrt(H)."""
    return x.shape[-1] ** -0.25


def flat_matmul(x, w, transpose=False):
    """Computes `x @ w` for one matrix w, or for a matrix per head, `(K, ...)`.

    x is `(..., D)`, with a matrix per head `(X, rows, D)`. One matrix makes one flat
    product, which is faster than many small ones. On some CPUs TensorFlow 2.21 also
    writes beyond the result of a product of `(X, 1, rows, D)` and one matrix.
    """
    # gives all sizes, because an empty batch does not determine a size of -1
    shape = *sizes(x)[:-1], w.shape[-2 if transpose else -1]
    if w.shape[0] == 1 and len(w.shape) == 3:
        w = tf.squeeze(w, 0)
    if len(w.shape) == 2:
        x = tf.reshape(x, (-1, x.shape[-1]))
    else:
        x = split_heads(x, w.shape[0])
    return tf.reshape(tf.matmul(x, w, transpose_b=transpose), shape)


def split_heads(x, num_heads):
    """Reshapes `(X, rows, D)` to `(B, K, rows, D)`."""
    shape = size(x, 0) // num_heads, num_heads, size(x, 1), x.shape[2]
    return tf.reshape(x, shape)


def _gradients(function, inputs, upstream):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        output = function(*inputs)
    return tape.gradient(
        output,
        inputs,
        output_gradients=upstream,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )


def check_axis_of_heads(name, x, num_key_value_heads):
    if x.shape[0] != num_key_value_heads:
        raise ValueError(
            f"{name} with an axis of heads must have one entry for each of the "
            f"{num_key_value_heads} heads of key and value. Received: {name} of shape "
            f"{tuple(x.shape)}"
        )
