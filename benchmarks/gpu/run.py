"""Compiles and runs the programs of `benchmarks.gpu.programs` on a GPU; writes JSON.

    python benchmarks/gpu/run.py FOLDER [--minutes 8] [--output results.json]

Needs JAX, which includes XLA and its runtime, but neither TensorFlow nor this package.
Loads programs by private functions of JAX 0.11.2. Compiles programs in parallel before
the first one runs. In addition to exact attention of Keras, measures a JAX layer with
cuDNN's fused attention, which TensorFlow does not offer.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import time
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir

# A round is the mean of the calls that fit in SECONDS, at most CALLS.
SECONDS, CALLS, ROUNDS = 0.2, 20, 5
MATMUL_SIZE = 8192


class Program(typing.NamedTuple):
    """A compiled program: a function of a list of arrays, and their descriptions.

    `temporary_bytes` excludes arguments and outputs.
    """

    call: typing.Callable
    arguments: list
    temporary_bytes: int
    compile_seconds: float


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=8, help="to compile")
    parser.add_argument("--output", type=pathlib.Path, default="results.json")
    options = parser.parse_args()
    end = time.perf_counter() + 60 * options.minutes
    written = json.loads((options.folder / "programs.json").read_text())
    results = {**written, **environment(), "programs": []}
    for case, program in compile_all(written["programs"], options.folder, end):
        row = {key: x for key, x in case.items() if key != "arguments"}
        results["programs"].append(row)
        try:
            row |= run(case, program.result(timeout=0), options.folder)
        except Exception as error:  # usually a lack of memory; the row has the reason
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        print(json.dumps(row), flush=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    os._exit(0)  # does not wait for programs that still compile


def environment():
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "jax": jax.__version__,
        "runtime": " ".join(device.client.platform_version.split()),
        "date": time.strftime("%Y-%m-%d"),
        "matmul_flops": matmul_flops() if device.platform == "gpu" else None,
    }


def matmul_flops():
    """Measures operations a second in a product of two large bfloat16 matrices."""
    x = jax.random.normal(jax.random.key(0), (MATMUL_SIZE, MATMUL_SIZE), "bfloat16")
    product = jax.jit(jnp.matmul)
    return (
        2 * MATMUL_SIZE**3 / statistics.median(seconds(lambda _: [product(x, x)], []))
    )


def compile_all(cases, folder, end):
    """Yields cases with futures of their `Program`, after all are done or at `end`."""
    pool = concurrent.futures.ThreadPoolExecutor(max(os.cpu_count() - 2, 1))
    futures = [pool.submit(compiled, case, folder) for case in cases]
    # nothing else runs when programs are timed
    concurrent.futures.wait(futures, end - time.perf_counter())
    pool.shutdown(wait=False, cancel_futures=True)
    return zip(cases, futures)


def compiled(case, folder):
    start = time.perf_counter()
    if "file" not in case:  # the JAX layer
        call, arguments, memory = fused(case)
    else:
        call, memory = loaded(folder / f"{case['file']}.mlirbc")
        arguments = case["arguments"]
    seconds = time.perf_counter() - start
    return Program(call, arguments, memory.temp_size_in_bytes, seconds)


def loaded(path):
    """Compiles the program in a file; returns its function and memory statistics."""
    device = jax.devices()[0]
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=1,
        device_assignment=np.array([[device.id]]),
        backend=device.client,
    )
    with mlir.make_ir_context():
        executable = device.client.compile_and_load(
            ir.Module.parse(path.read_bytes()),
            xla_client.DeviceList((device,)),
            options,
        )

    def call(arrays):
        outputs = executable.execute_sharded(arrays)
        return [x for (x,) in outputs.disassemble_into_single_device_arrays()]

    return call, executable.get_compiled_memory_stats()


def fused(case):
    """Compiles the training step of a bfloat16 layer with cuDNN's fused attention."""
    batch, length, heads, dim = (
        case[key] for key in ("batch", "length", "num_heads", "key_dim")
    )
    width = heads * dim

    def loss(x, query, key, value, output):
        q, k, v = (jnp.einsum("btw,wnh->btnh", x, w) for w in (query, key, value))
        is_causal, implementation = case["form"] == "causal", "cudnn"
        mixed = jax.nn.dot_product_attention(
            q, k, v, is_causal=is_causal, implementation=implementation
        )
        y = jnp.einsum("btnh,nhw->btw", mixed, output)
        return jnp.mean(jnp.square(y.astype("float32")))

    def step(x, *weights):
        weights = [w.astype("bfloat16") for w in weights]
        return jax.grad(loss, argnums=range(5))(x, *weights)

    shapes = [(batch, length, width), *3 * [(width, heads, dim)], (heads, dim, width)]
    given = zip(shapes, ["bfloat16", *4 * ["float32"]], [1.0, *4 * [width**-0.5]])
    arguments = [dict(zip(("shape", "dtype", "std"), each)) for each in given]
    specs = [jax.ShapeDtypeStruct(x["shape"], x["dtype"]) for x in arguments]
    executable = jax.jit(step).lower(*specs).compile()
    return lambda arrays: executable(*arrays), arguments, executable.memory_analysis()


def run(case, program, folder):
    """Runs a program; returns a row with its errors or its times."""
    row = {
        "temporary_bytes": program.temporary_bytes,
        "compile_seconds": round(program.compile_seconds, 1),
    }
    if case["kind"] != "numbers":
        arrays = [drawn(i, x) for i, x in enumerate(program.arguments)]
        return {**row, "seconds": seconds(program.call, arrays)}
    with np.load(folder / f"{case['file']}.npz") as known:
        given = [known[f"argument{i}"] for i in range(len(program.arguments))]
        outputs = program.call([jnp.asarray(x) for x in given])
        right = [known[f"expected{i}"].astype("float64") for i in range(len(outputs))]
        wrong = [np.asarray(x) - y for x, y in zip(outputs, right)]
    return {
        **row,
        "output_error": size(wrong[:1]) / size(right[:1]),
        "gradient_error": size(wrong[1:]) / size(right[1:]),
    }


def size(arrays):
    """Returns the Euclidean norm of all arrays together."""
    return float(np.sqrt(sum(np.sum(np.square(x)) for x in arrays)))


def drawn(seed, described):
    """Samples normal numbers for an argument."""
    key, dtype = jax.random.key(seed), described["dtype"]
    return described["std"] * jax.random.normal(key, described["shape"], dtype)


def seconds(call, arrays):
    """Returns the mean seconds of consecutive calls, for each round."""

    def time_of(calls):
        start = time.perf_counter()
        for _ in range(calls):
            outputs = call(arrays)
        jax.block_until_ready(outputs)
        return (time.perf_counter() - start) / calls

    time_of(1)
    calls = min(max(int(SECONDS / time_of(1)), 1), CALLS)
    return [time_of(calls) for _ in range(ROUNDS)]


if __name__ == "__main__":
    main()
