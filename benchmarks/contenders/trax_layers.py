"""FavorAttention of trax 1.4.1."""

import importlib.metadata

import numpy as np
from jax import random
from trax.layers.research import sparsity


def start(threads):
    return {name: importlib.metadata.version(name) for name in ("trax", "jax")}


def attend(case, query, key, value):
    """Runs the layer, whose seed is fixed, with features sampled by the case's seed."""
    options = {"scale_by_norm": True, "normalize_data": True}
    length, dim = query.shape
    layer = sparsity.FavorAttention(
        dim, 1, case["features"], use_approximate_softmax=True, **options
    )
    layer._projection_matrix = layer.get_2d_array(
        rng=random.PRNGKey(case["seed"]),
        n_rows=case["features"],
        n_columns=dim,
        **options,
    )
    mask = np.ones((1, length), bool)
    return layer((query[None], key[None], value[None], mask))[0][0]
