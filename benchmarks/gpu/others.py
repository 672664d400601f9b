"""Times attention of PyTorch and flash-linear-attention on a GPU; writes others.json.

    python benchmarks/gpu/others.py [OUTPUT_FOLDER]

Needs PyTorch, and flash-linear-attention 0.6.0 for its rows; not TensorFlow. Times
forward and backward of attention alone, without the four dense layers around it, in
bfloat16 with 8 heads of size 64. Rows with features give the operation of
flash-linear-attention 256 positive features of each query and key, as FAVOR+ does.
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

NUM_HEADS, KEY_DIM, NUM_FEATURES = 8, 64, 256
SIZES = (16, 4096), (1, 65_536), (64, 1024), (4, 16_384), (8, 4096), (1, 8192)
CALLS, ROUNDS = 10, 5


def main(folder="runs/gpu"):
    path = pathlib.Path(folder) / "others.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = ("torch", "triton", "flash-linear-attention")
    results = {"device": torch.cuda.get_device_name(), "rows": []}
    results |= {name: version_of(name) for name in versions}
    for batch, length in SIZES:
        for name, of_heads_first, attend, dims in rows(length):
            shape = [NUM_HEADS, length] if of_heads_first else [length, NUM_HEADS]
            row = {"row": name, "batch": batch, "length": length}
            try:
                row |= measured(attend, [[batch, *shape, dim] for dim in dims])
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


def rows(length):
    """Yields name, whether heads come before tokens, function, sizes of q, k and v."""
    fused, heads = functional.scaled_dot_product_attention, 3 * (KEY_DIM,)
    yield "exact, bidirectional", True, fused, heads
    yield "exact, causal", True, functools.partial(fused, is_causal=True), heads
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.linear_attn import chunk_linear_attn
        from fla.ops.simple_gla import chunk_simple_gla
    except ImportError as error:
        print("without flash-linear-attention:", error)
        return
    linear = functools.partial(chunk_linear_attn, normalize=False)
    gates = torch.randn(1, length, NUM_HEADS, device="cuda")

    def gated(q, k, v):
        g = functional.logsigmoid(gates + 4).expand(q.shape[0], -1, -1)
        return chunk_simple_gla(q, k, v, g=g.contiguous())

    def delta(q, k, v):
        g = functional.logsigmoid(gates + 4).expand(q.shape[0], -1, -1).contiguous()
        beta = torch.sigmoid(gates).to(q.dtype).expand_as(g).contiguous()
        k = functional.normalize(k.float(), dim=-1).to(q.dtype)
        return chunk_gated_delta_rule(q, k, v, g=g, beta=beta)

    matrix = torch.randn(NUM_FEATURES, KEY_DIM, device="cuda", dtype=torch.bfloat16)

    def features(x):
        x = x * KEY_DIM**-0.25
        norm = x.float().square().sum(-1, keepdim=True) / 2
        return torch.exp((x @ matrix.T).float() - norm).to(x.dtype)

    @torch.compile
    def performer(q, k, v):
        return linear(features(q), features(k), v)

    yield "chunk_linear_attn, no features", False, linear, heads
    yield "chunk_linear_attn, 256 features", False, performer, heads
    yield "chunk_simple_gla, no features", False, gated, heads
    yield "chunk_gated_delta_rule, no features", False, delta, heads


def measured(attend, shapes):
    """Returns the milliseconds of forward and backward, and the peak of memory."""
    options = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
    arrays = [torch.randn(shape, **options) for shape in shapes]

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
