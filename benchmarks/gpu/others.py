"""Times attention of PyTorch and flash-linear-attention on a GPU; writes others.json.

    python benchmarks/gpu/others.py [OUTPUT_FOLDER]

Needs PyTorch, and flash-linear-attention 0.6.0 for its row; not TensorFlow. Times
forward and backward of attention alone, without the four dense layers around it, in
bfloat16 with 8 heads of size 64.
"""

import functools
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

import torch
from torch.nn import functional

NUM_HEADS, KEY_DIM = 8, 64
SIZES = (16, 4096), (1, 65_536), (64, 1024), (4, 16_384), (8, 4096), (1, 8192)
CALLS, ROUNDS = 10, 5


def main(folder="runs/gpu"):
    path = pathlib.Path(folder) / "others.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = ("torch", "triton", "flash-linear-attention")
    results = {"device": torch.cuda.get_device_name(), "rows": []}
    results |= {name: version_of(name) for name in versions}
    for batch, length in SIZES:
        for name, attend, of_heads_first in rows():
            shape = [NUM_HEADS, length] if of_heads_first else [length, NUM_HEADS]
            row = {"row": name, "batch": batch, "length": length}
            try:
                row |= measured(attend, [batch, *shape, KEY_DIM])
            except Exception as error:  # a row that does not run must not end the rest
                row["error"] = f"{type(error).__name__}: {error}"[:300]
            results["rows"].append(row)
            print(row, flush=True)
            path.write_text(json.dumps(results, indent=1) + "\n")


def version_of(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def rows():
    """Yields name, function, and whether heads come before tokens."""
    fused = functional.scaled_dot_product_attention
    yield "exact, bidirectional", fused, True
    yield "exact, causal", functools.partial(fused, is_causal=True), True
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError as error:
        print("without flash-linear-attention:", error)
        return
    linear = functools.partial(chunk_linear_attn, normalize=False)
    yield "chunk_linear_attn, no features", linear, False


def measured(attend, shape):
    """Returns the milliseconds of forward and backward, and the peak of memory."""
    options = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
    arrays = [torch.randn(shape, **options) for _ in "qkv"]

    def step():
        for x in arrays:
            x.grad = None
        y = attend(*arrays)
        y = y[0] if isinstance(y, tuple) else y
        y.float().square().mean().backward()

    def time_of(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / calls

    first = time_of(1)
    torch.cuda.reset_peak_memory_stats()
    time_of(3)
    rounds = [round(time_of(CALLS), 3) for _ in range(ROUNDS)]
    peak = torch.cuda.max_memory_allocated()
    first = round(first / 1e3, 2)
    return {"first_call": first, "ms": statistics.median(rounds), "peak_bytes": peak}


if __name__ == "__main__":
    main(*sys.argv[1:])
