"""How one layer of linear attention is fitted to exact attention."""

import typing

import numpy as np
import tensorflow as tf

from keras_performer import feature_maps, ops
from keras_performer.approximation.errors import HeadSums, add_error
from keras_performer.conversion.report import CalibratedLayer
from keras_performer.layers import PerformerAttention
from keras_performer.layers.attention_like import attention_like
from keras_performer.layers.far_gain import SPEED

# What is added to the logarithm of far weights, tried for each head.
LOG_GAINS = -2.0, -1.0, -0.5, 0.5, 1.0, 2.0
# Something else is chosen if it leaves less than this part of the error, so that noise
# changes nothing; and not at all where the error is smaller than this.
BETTER, SMALL = 0.98, 1e-3


class Fit:
    """Ways to estimate the attention of a layer, measured call by call.

    Args:
        layer: a `PerformerAttention`.
        moments: `Moments` of its queries and keys.
        num_rows: int, at how many queries of a sequence errors are measured.
    """

    def __init__(self, layer, moments, num_rows):
        self.layer = layer
        self.num_rows = num_rows
        gains = layer.log_gain_of_heads()
        self.gains = None if gains is None else gains.numpy()
        self._try([(choice, self.gains) for choice in _choices(layer, moments)])

    def measure(self, query, key, value, inputs):
        """Adds the errors of all that is tried in one call with exact inputs.

        Args:
            query, key, value: float32 tensors in heads.
            inputs: the `Inputs` of the layer.
        """
        for sums, (choice, gains) in zip(self.sums, self.tried):
            q, k = _in_basis(query, key, choice.basis)
            estimate = _estimate(
                self.layer, choice.kernel, gains, q, k, value, inputs.visible
            )
            add_error(
                sums, "fitted", estimate, query, key, value, inputs, self.num_rows
            )

    def choose_basis(self):
        """Chooses the basis and the features with the least error over all heads."""
        found = [_errors(sums) for sums in self.sums]
        sizes = [_size(of_heads) for of_heads in found]
        best = int(np.argmin(sizes))
        if sizes[best] > BETTER * sizes[0] or sizes[0] < SMALL:
            best = 0
        self.before, self.least = sizes[0], found[best]
        self.choice = self.tried[best][0]
        changes = LOG_GAINS if self.gains is not None else ()
        self._try([(self.choice, self.gains + change) for change in changes])

    def choose_gains(self):
        """Chooses the gain of each head with its least error."""
        for sums, (_, gains) in zip(self.sums, self.tried):
            of_heads = _errors(sums)
            better = (of_heads < BETTER * self.least) & (self.least > SMALL)
            self.gains = np.where(better, gains, self.gains)
            self.least = np.where(better, of_heads, self.least)

    def result(self):
        """A layer that is fitted, and its `CalibratedLayer`."""
        row = CalibratedLayer(
            self.layer.path,
            self.choice.basis_name,
            _name(self.choice.feature_map),
            self.before,
            _size(self.least),
        )
        return _with(self.layer, self.choice, self.gains), row

    def _try(self, pairs):
        self.tried = pairs
        self.sums = [HeadSums(self.layer.num_heads) for _ in pairs]


def _errors(sums):
    """The relative error of each head."""
    # a head without output has no error; an estimate that overflows the largest
    found = np.nan_to_num(sums.error("fitted"), nan=np.inf)
    return np.where(sums.squares == 0, 0, found)


def _size(errors):
    return float(np.sqrt(np.mean(errors**2)))


class _Choice(typing.NamedTuple):
    """A way to estimate the attention of a layer."""

    basis_name: str
    basis: typing.Any
    feature_map: typing.Any
    kernel: typing.Any


def _choices(layer, moments):
    """What is tried, first what the layer is."""
    own, kernel = layer.feature_map, layer.kernel()
    bases = [("as it is", moments.as_it_is())]
    if layer.rotary is None and not layer.qk_norm:  # else nothing cancels
        if layer.use_bias:
            bases.append(("centred", moments.centred()))
        bases.append(("balanced", moments.balanced(centre=layer.use_bias)))
    for name, basis in bases:
        yield _Choice(name, basis, own, kernel)
        taylor = feature_maps.TaylorFeatures(_rank(kernel.num_features(layer.key_dim)))
        if not isinstance(own, feature_maps.TaylorFeatures):
            yield _Choice(name, basis, taylor, taylor.kernel(None))


def _rank(num_features):
    """The largest R whose 1 + R + R (R + 1) / 2 features are not more."""
    rank = 1
    while 1 + (rank + 1) + (rank + 1) * (rank + 2) // 2 <= num_features:
        rank += 1
    return rank


def _in_basis(query, key, basis):
    """Queries and keys in another `Basis`, float32."""
    of_queries, of_keys, mean = (tf.constant(x, tf.float32) for x in basis)
    group = query.shape[2] // key.shape[2]
    query = tf.einsum("btnh,nhg->btng", query, tf.repeat(of_queries, group, axis=0))
    return query, tf.einsum("bsnh,nhg->bsng", key - mean, of_keys)


def _estimate(layer, kernel, gains, query, key, value, visible):
    if layer.exact_window is not None:
        window = layer.exact_window
        output, _ = ops.windowed_attention(
            query, key, value, kernel, window, gains, visible
        )
    elif visible.causal:
        output, _ = ops.causal_attention(query, key, value, kernel, visible)
    else:
        output = ops.bidirectional_attention(query, key, value, kernel, visible)
    return output


def _with(layer, choice, gains):
    """A `PerformerAttention` that computes the choice by its weights."""
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
    if gains is not None:
        new.log_gain.assign(gains / SPEED)
    return new


def _name(feature_map):
    if isinstance(feature_map, feature_maps.TaylorFeatures):
        rank = feature_map.rank
        return "taylor" if rank is None else f"taylor, rank {rank}"
    return type(feature_map).__name__
