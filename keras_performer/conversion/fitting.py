"""Fits one layer of linear attention to exact attention."""

import functools
import typing

import numpy as np
import tensorflow as tf

from keras_performer import feature_maps, ops
from keras_performer.conversion.attention_like import attention_like
from keras_performer.conversion.errors import (
    HeadSums,
    exact_rows,
    logits_of,
    mean_by_logits,
    mean_by_weights,
    pair_weights,
)
from keras_performer.conversion.report import CalibratedLayer
from keras_performer.layers import PerformerAttention

# Changes of log-gains to try for each head; -8 nearly leaves local attention.
LOG_GAINS = 0.5, 1.0, 2.0, -0.5, -1.0, -2.0, -4.0, -8.0
# Another choice must leave less than the share BETTER of the error, so that noise does
# not decide. If the error is below SMALL, nothing changes.
BETTER, SMALL = 0.98, 1e-3
# Name of the unchanged basis of queries and keys.
UNCHANGED = "as it is"
# Share of the mean variance to add to each variance of a covariance matrix.
RIDGE = 0.01
# Smallest variance of a head as a share of its mean square; less is rounding.
CONSTANT = 1e-6


class Fit:
    """Choices for the weights and features of a `PerformerAttention`, and their errors.

    Add to its `moments` first: they give the bases of queries and keys to choose from.
    """

    def __init__(self, layer, num_rows):
        self.layer = layer
        self.num_rows = num_rows
        self.moments = Moments(layer.num_key_value_heads, layer.key_dim)
        self.gains = np.zeros(layer.num_heads, np.float32)
        self.changes = [0.0]  # of log-gains, which need a window
        if layer.exact_window is not None:
            self.gains = layer.log_gain.numpy()
            self.changes += LOG_GAINS
        self.sums = HeadSums(layer.num_heads)

    @functools.cached_property
    def choices(self):
        return list(_choices(self.layer, self.moments))

    def measure(self, query, key, value, inputs):
        """Adds the errors of all choices in one call; arguments as in `exact_rows`."""
        window = self.layer.exact_window
        exact = exact_rows(query, key, value, inputs, self.num_rows, window)
        self.sums.add_exact(exact)
        basis = None
        for index, choice in enumerate(self.choices):
            if choice.basis is not basis:  # choices of one basis are neighbours
                basis = choice.basis
                q, k = _in_basis(exact.query, key, basis)
                near = mean_by_logits(logits_of(q, k), exact.value, exact.near)
            weights = pair_weights(q, k, choice.kernel)
            others = exact.seen & ~exact.near
            output, log_sums = mean_by_weights(*weights, exact.value, others)
            for change in self.changes:
                gains = (self.gains + change)[:, np.newaxis, np.newaxis]
                joined, _ = ops.join_parts(near, (output, log_sums + gains))
                self.sums.add_output((index, change), joined, exact)

    def result(self):
        """Returns the fitted layer and its `CalibratedLayer`.

        Each head gets the gain with the least error. The basis and features are then
        chosen by the error over all heads with these gains.
        """
        found = [self._with_gains(index) for index in range(len(self.choices))]
        sizes = [_size(errors) for errors, _ in found]
        best = int(np.argmin(sizes))
        if sizes[best] > BETTER * sizes[0] or sizes[0] < SMALL:
            best = 0
        choice, (_, gains) = self.choices[best], found[best]
        row = self.as_it_was()._replace(
            basis=choice.basis_name,
            feature_map=_name(choice.feature_map),
            after=sizes[best],
        )
        return _fitted_layer(self.layer, choice, gains), row

    def as_it_was(self):
        """Returns the `CalibratedLayer` of the unchanged layer."""
        error = _size(self._errors(0))
        name = _name(self.layer.feature_map)
        return CalibratedLayer(self.layer.path, UNCHANGED, name, error, error)

    def _with_gains(self, index):
        """Returns the least error of each head with a choice, and the gains for it."""
        least, gains = self._errors(index), self.gains
        for change in self.changes:
            errors = self._errors(index, change)
            better = (errors < BETTER * least) & (least > SMALL)
            gains = np.where(better, self.gains + change, gains)
            least = np.where(better, errors, least)
        return least, gains

    def _errors(self, index, change=0.0):
        """Returns relative errors of heads with a choice and a change of gains."""
        errors = self.sums.error((index, change))
        return np.where(np.isnan(errors), 0, errors)  # nan for heads without output


def _size(errors):
    return float(np.sqrt(np.mean(errors**2)))


class _Choice(typing.NamedTuple):
    basis_name: str
    basis: typing.Any
    feature_map: typing.Any
    kernel: typing.Any


def _choices(layer, moments):
    """Yields choices, first the layer as it is."""
    own, kernel = layer.feature_map, layer.feature_kernel()
    bases = [(UNCHANGED, moments.as_it_is())]
    if layer.rotary is None and not layer.qk_norm:  # else matrices do not cancel
        if layer.use_bias:
            bases.append(("centred", moments.centred()))
        bases.append(("balanced", moments.balanced(centre=layer.use_bias)))
    for name, basis in bases:
        yield _Choice(name, basis, own, kernel)
        taylor = feature_maps.TaylorFeatures(_rank(kernel, layer.key_dim))
        if not isinstance(own, feature_maps.TaylorFeatures):
            yield _Choice(name, basis, taylor, taylor.kernel(None))


def _rank(kernel, head_dim):
    """Returns the largest rank with no more Taylor features than the kernel has."""
    most = kernel.num_features(head_dim)
    ranks = range(1, head_dim + 1)
    fitting = (r for r in ranks if ops.TaylorKernel(r).num_features(head_dim) <= most)
    return max(fitting, default=1)


def _in_basis(query, key, basis):
    """Returns queries and keys in another `Basis`, float32."""
    of_queries, of_keys, mean = (tf.constant(x, tf.float32) for x in basis)
    group = query.shape[2] // key.shape[2]
    query = tf.einsum("btnh,nhg->btng", query, tf.repeat(of_queries, group, axis=0))
    return query, tf.einsum("bsnh,nhg->bsng", key - mean, of_keys)


def _fitted_layer(layer, choice, gains):
    """Returns a new `PerformerAttention` with a choice and gains in its weights."""
    options = {}
    if choice.feature_map != layer.feature_map:
        options = dict(feature_map=choice.feature_map, num_random_features=None)
    new = attention_like(PerformerAttention, layer, **options)
    group = layer.num_heads // layer.num_key_value_heads
    of_queries = np.repeat(choice.basis.of_queries, group, axis=0)
    of_keys, mean = choice.basis.of_keys, choice.basis.mean
    for dense, matrix, moved in (
        (new.query_dense, of_queries, 0.0),
        (new.key_dense, of_keys, mean),
    ):
        kernel = np.asarray(dense.kernel, np.float64)
        dense.kernel.assign(np.einsum("...nh,nhg->...ng", kernel, matrix))
        if dense.bias is not None:
            bias = np.asarray(dense.bias, np.float64) - moved
            dense.bias.assign(np.einsum("nh,nhg->ng", bias, matrix))
    if new.log_gain is not None:
        new.assign_log_gain(gains)
    return new


def _name(feature_map):
    if isinstance(feature_map, feature_maps.TaylorFeatures):
        rank = feature_map.rank
        return "taylor" if rank is None else f"taylor, rank {rank}"
    return type(feature_map).__name__


# -- Means and covariances of queries and keys, and the bases that follow from them.


class Basis(typing.NamedTuple):
    """Linear maps of queries and keys that leave their softmax attention as it is.

    Queries become q A and keys (k - m) B with A B^T = 1. Logits lose the term q . m,
    which is equal for all keys.
    """

    of_queries: np.ndarray  # A, (K, H, H), for each key-value head
    of_keys: np.ndarray  # B, (K, H, H)
    mean: np.ndarray  # m, (K, H)


class Moments:
    """Sums over tokens, in which query heads that share a key head count as one."""

    def __init__(self, num_heads, key_dim):
        self.num_heads = num_heads
        self.queries = _Sums(num_heads, key_dim)
        self.keys = _Sums(num_heads, key_dim)

    def add(self, query, key, inputs):
        """Adds unmasked queries `(B, T, N, H)` and keys `(B, S, K, H)` of a call."""
        grouped = (*query.shape[:2], self.num_heads, -1, query.shape[3])
        for group in tf.unstack(tf.reshape(query, grouped), axis=3):
            self.queries.add(group, inputs.query_mask)
        self.keys.add(key, inputs.visible.key_mask)

    @property
    def num_tokens(self):
        """Number of unmasked queries or keys of a head, the smaller one."""
        return min(self.queries.number, self.keys.number)

    def as_it_is(self):
        """Returns the `Basis` that changes nothing."""
        mean = np.zeros_like(self.keys.mean())
        same = np.broadcast_to(np.eye(mean.shape[1]), (*mean.shape, mean.shape[1]))
        return Basis(same, same, mean)

    def centred(self):
        """Returns the `Basis` in which the mean of keys is 0."""
        return self.as_it_is()._replace(mean=self.keys.mean())

    def balanced(self, centre=True):
        """Returns the `Basis` in which queries and keys have equal diagonal covariance.

        Variances fall from the first element to the last. The product of the total
        variances of queries and keys is minimal; the error of random features depends
        on it. With `centre`, the mean of keys also becomes 0.
        """
        of_queries, of_keys = [], []
        for pair in zip(self.queries.covariance(), self.keys.covariance()):
            x, y = (np.linalg.cholesky(covariance) for covariance in pair)
            u, sizes, v = np.linalg.svd(y.T @ x)
            of_queries.append(y @ u / np.sqrt(sizes))
            of_keys.append(x @ v.T / np.sqrt(sizes))
        mean = (self.centred() if centre else self.as_it_is()).mean
        return Basis(np.stack(of_queries), np.stack(of_keys), mean)


class _Sums:
    def __init__(self, num_heads, size):
        self.number = 0
        self.first = np.zeros((num_heads, size))
        self.second = np.zeros((num_heads, size, size))

    def add(self, heads, mask):
        """Adds the unmasked tokens of heads `(B, T, K, H)`."""
        heads = heads.numpy()
        there = np.broadcast_to(True if mask is None else mask, heads.shape[:2])
        tokens = heads[there].astype(np.float64)
        self.number += len(tokens)
        self.first += tokens.sum(0)
        of_heads = np.ascontiguousarray(tokens.swapaxes(0, 1))
        self.second += of_heads.swapaxes(1, 2) @ of_heads

    def mean(self):
        return self.first / max(self.number, 1)

    def covariance(self):
        mean = self.mean()
        second = self.second / max(self.number, 1)
        found = second - np.einsum("kh,kg->khg", mean, mean)
        # pruned heads are constant or 0
        traces = [np.trace(x, axis1=1, axis2=2) for x in (found, second)]
        size = np.maximum(traces[0], CONSTANT * traces[1])
        size = np.where(size > 0, size, 1.0)[:, np.newaxis, np.newaxis]
        return found + RIDGE * size * np.eye(mean.shape[1]) / mean.shape[1]
