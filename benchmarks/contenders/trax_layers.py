"""FavorAttention of trax 1.4.1."""

import importlib.metadata

import numpy as np
from jax import random
from trax.layers.research import sparsity


def start(threads):
    return {name: importlib.metadata.version(name) for name in ("trax", "jax")}


def attend(case):
    """The layer draws its features with a seed that is fixed: another is given here."""
    with np.load(case["inputs"]) as arrays:
        query, key, value = (
            arrays[name][None].astype("float32") for name in ("query", "key", "value")
        )
    dim = query.shape[-1]
    options = {"scale_by_norm": True, "normalize_data": True}
    layer = sparsity.FavorAttention(
        dim, 1, case["features"], use_approximate_softmax=True, **options
    )
    layer._projection_matrix = layer.get_2d_array(
        rng=random.PRNGKey(case["seed"]),
        n_rows=case["features"],
        n_columns=dim,
        **options,
    )
    mask = np.ones(query.shape[:2], bool)
    output, _ = layer((query, key, value, mask))
    np.save(case["output"], np.asarray(output[0]))
