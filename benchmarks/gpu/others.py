"""Times PyTorch's fused exact attention on a GPU; writes others.json.

    python benchmarks/gpu/others.py [OUTPUT_FOLDER]

Needs PyTorch, not TensorFlow. Times forward and backward of attention alone, without
the four dense layers around it, in bfloat16 with 8 heads of size 64.
"""

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
    device = torch.cuda.get_device_name()
    results = {"device": device, "torch": torch.__version__, "rows": []}
    for batch, length in SIZES:
        for form in ("bidirectional", "causal"):
            row = {"row": f"exact, {form}", "batch": batch, "length": length}
            row |= measured((batch, NUM_HEADS, length, KEY_DIM), form == "causal")
            results["rows"].append(row)
            print(row, flush=True)
            path.write_text(json.dumps(results, indent=1) + "\n")


def measured(shape, causal):
    """Returns the milliseconds of forward and backward, and the peak of memory."""
    options = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
    arrays = [torch.randn(shape, **options) for _ in range(3)]

    def step():
        for x in arrays:
            x.grad = None
        y = functional.scaled_dot_product_attention(*arrays, is_causal=causal)
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
