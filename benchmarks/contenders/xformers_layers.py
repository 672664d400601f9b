"""FavorAttention of xformers 0.0.28; later versions lack it."""

import importlib.metadata

import torch
from xformers.components.attention import FavorAttention
from xformers.components.attention.feature_maps import FeatureMapType


def start(threads):
    torch.set_num_threads(threads)
    return {"xformers": importlib.metadata.version("xformers")}


def attend(case, *inputs):
    torch.manual_seed(case["seed"])
    kind = FeatureMapType(case["contender"].removeprefix("xformers "))
    attention = FavorAttention(dim_features=case["features"], feature_map_type=kind)
    with torch.no_grad():
        return attention(*(torch.tensor(x[None]) for x in inputs))[0]
