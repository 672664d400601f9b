"""FavorAttention of xformers 0.0.28, whose later versions have none."""

import importlib.metadata

import numpy as np
import torch
from xformers.components.attention import FavorAttention
from xformers.components.attention.feature_maps import FeatureMapType


def start(threads):
    torch.set_num_threads(threads)
    return {"xformers": importlib.metadata.version("xformers")}


def attend(case):
    torch.manual_seed(case["seed"])
    with np.load(case["inputs"]) as arrays:
        inputs = [
            torch.tensor(arrays[name][None], dtype=torch.float32)
            for name in ("query", "key", "value")
        ]
    kind = FeatureMapType(case["contender"].removeprefix("xformers "))
    attention = FavorAttention(dim_features=case["features"], feature_map_type=kind)
    with torch.no_grad():
        np.save(case["output"], attention(*inputs)[0].numpy())
