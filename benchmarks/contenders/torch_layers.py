"""PyTorch: exact attention in its fused form, and performer-pytorch."""

import importlib.metadata

import numpy as np
import torch
from performer_pytorch import SelfAttention

from benchmarks import contenders


def start(threads):
    torch.set_num_threads(threads)
    version = importlib.metadata.version("performer-pytorch")
    return {"torch": torch.__version__, "performer-pytorch": version}


def program(case):
    torch.manual_seed(0)
    causal = case["form"] == "causal"
    if case["contender"] == "scaled_dot_product_attention":
        layer = Exact(causal)
    else:
        layer = SelfAttention(
            contenders.WIDTH,
            causal=causal,
            heads=contenders.NUM_HEADS,
            dim_head=contenders.KEY_DIM,
            nb_features=contenders.NUM_RANDOM_FEATURES,
        )
    x = np.random.default_rng(0).standard_normal((1, case["length"], contenders.WIDTH))
    x = torch.tensor(x, dtype=torch.float32, requires_grad=True)

    def step():
        layer.zero_grad()
        x.grad = None
        layer(x).square().sum().backward()

    return step


class Exact(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        width = contenders.NUM_HEADS * contenders.KEY_DIM
        self.projections = torch.nn.Linear(contenders.WIDTH, 3 * width)
        self.output = torch.nn.Linear(width, contenders.WIDTH)

    def forward(self, x):
        heads = (3, contenders.NUM_HEADS, contenders.KEY_DIM)
        query, key, value = self.projections(x).unflatten(-1, heads).unbind(2)
        attended = torch.nn.functional.scaled_dot_product_attention(
            *(y.transpose(1, 2) for y in (query, key, value)), is_causal=self.causal
        )
        return self.output(attended.transpose(1, 2).flatten(2))
