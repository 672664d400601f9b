"""Compiles training steps for an H100 that is not there; estimates their time.

    .tpu/bin/pip install --no-deps jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 \\
        nvidia-cuda-nvcc-cu12==12.9.86
    .tpu/bin/python -m benchmarks.gpu.compiled [--rows features ...] [--chunk 128]
        [--features 25] [--max-chunks 32] [--batch 16] [--length 4096]

TensorFlow lowers a step, and XLA compiles it for a GPU that is described only. XLA
chooses no kernels by measurement then. The estimate is the sum over all kernels of the
step: bytes that a kernel reads and writes, at 3.4 TB/s, but at least 2.5 us. It counts
no arithmetic, and compares programs better than it predicts times. `--chunk`,
`--features` (a power of two) and `--max-chunks` replace `blocks.ON_GPU`. Needs
`make .tpu/.installed`.
"""

import collections
import functools
import math
import os
import pathlib
import re
import sys
from unittest import mock

import keras
import tensorflow as tf

from benchmarks import runner, stablehlo
from benchmarks.gpu import layers
from keras_performer.ops import blocks

BYTES_A_SECOND, LEAST_SECONDS = 3.4e12, 2.5e-6
# Facts of the chip, as XLA wants them.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 cuda_compute_capability { major: 9 }
}
platform_name: "CUDA" device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 8 }
"""
SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8, "u64": 8}
COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
NOT_KERNELS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
Instruction = collections.namedtuple("Instruction", "is_root type op operands rest")


def main(argv=None):
    ours = blocks.ON_GPU
    more = dict(chunk=ours.chunk, max_chunks=ours.max_chunks, batch=16, length=4096)
    more |= dict(features=ours.features.bit_length() - 1, rows=[str])
    options = runner.options(__doc__, argv, {"rows": layers.ROWS}, **more)
    keras.config.set_dtype_policy("mixed_bfloat16")
    sizes = {name: getattr(options, name) for name in ("chunk", "max_chunks")}
    sizes = ours._replace(features=2**options.features, **sizes)
    for row in options.rows or layers.ROWS:
        for form in layers.CAUSAL:
            case = layers.case(row, form, "xla", options.batch, options.length)
            with mock.patch.object(blocks, "ON_GPU", sizes):
                found = estimate(compiled(lowered(case)))
            print(row, form, f"{options.batch} x {options.length:,}", found, flush=True)


def lowered(case):
    layer = layers.layer_of(case)
    layer(tf.zeros((1, 8, layers.WIDTH), tf.bfloat16))
    step = layers.step_of(layer, jit_compile=True).python_function
    shape = case["batch"], case["length"], layers.WIDTH
    with stablehlo.pretended("GPU"):
        return stablehlo.lower(step, tf.TensorSpec(shape, tf.bfloat16))


def compiled(program):
    """Returns the text of the program that XLA makes of StableHLO for an H100."""
    # JAX reads these variables when it loads its plugin for GPUs
    site = pathlib.Path(sys.prefix, "lib").glob(
        "python*/site-packages/nvidia/cuda_nvcc"
    )
    os.environ["XLA_FLAGS"] = (
        f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={next(site)}"
    )
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    from benchmarks.tpu import compiler

    topology = compiler.topologies.get_topology_desc(
        "h100", platform="cuda", target_config=H100, topology="1x1x1"
    )
    return compiler.compile_on(program, topology.devices[:1]).text


def estimate(text):
    """Returns kernels, gigabytes and milliseconds of a compiled program.

    Also returns its matrix products. On a GPU, XLA tries kernels for each of them.
    """
    computations, entry = parsed(text)
    found = collections.Counter()
    add_kernels(computations, entry, 1, found)
    return {
        "kernels": found["kernels"],
        "gigabytes": round(found["bytes"] / 1e9, 1),
        "milliseconds": round(1e3 * found["seconds"], 1),
        "products": len(re.findall(r" dot\(|custom-call\(.*gemm", text)),
    }


def parsed(text):
    """Returns the computations, dicts of `Instruction`, and the name of the entry."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            current = computations.setdefault(found[2], {})
            entry = found[2] if found[1] else entry
        elif current is not None and (found := INSTRUCTION.match(line)):
            is_root, name, kind, op, rest = found.groups()
            end = closing(rest)
            operands = re.findall(r"%([\w.-]+)", rest[:end])
            current[name] = Instruction(bool(is_root), kind, op, operands, rest[end:])
    return computations, entry


def closing(text):
    """Returns the index after the parenthesis that closes one before the text."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return index + 1
    return len(text)


def add_kernels(computations, name, times, found):
    """Adds the kernels of a computation that runs so many times; enters loops.

    A loop without a known count is the loop over rare chunks, which does not run.
    """
    own = computations[name]
    for x in own.values():
        if x.op == "while":
            body = re.search(r"body=%?([\w.-]+)", x.rest)[1]
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', x.rest)
            add_kernels(
                computations, body, times * int(count[1] if count else 0), found
            )
        elif x.op not in NOT_KERNELS:
            size = size_of(computations, own, x)
            found["kernels"] += times
            found["bytes"] += times * size
            found["seconds"] += times * max(size / BYTES_A_SECOND, LEAST_SECONDS)


def size_of(computations, own, x):
    """Returns the bytes that a kernel reads and writes."""
    if x.op == "fusion":
        return size_of_fusion(computations[re.search(r"calls=%?([\w.-]+)", x.rest)[1]])
    read = [bytes_of(own[name].type) for name in x.operands if name in own]
    if x.op == "dynamic-update-slice":
        return 2 * read[1]
    written = bytes_of(x.type)
    return 2 * written if x.op == "dynamic-slice" else sum(read, written)


def size_of_fusion(own):
    """Counts slices that are read or updated in place by their own size."""
    users = collections.defaultdict(list)
    for name, x in own.items():
        for place, operand in enumerate(x.operands):
            users[operand].append((name, place))

    def uses(name):
        for user, place in users[name]:
            if own[user].op == "bitcast":
                yield from uses(user)
            else:
                yield user, own[user].op, place

    def read(name):
        every = [*uses(name)]
        first = all(place == 0 for *_, place in every)
        ops = {op for _, op, _ in every}
        if first and ops <= {"dynamic-slice", "gather"}:
            return sum(bytes_of(own[user].type) for user, *_ in every)
        in_place = first and ops == {"dynamic-update-slice"}
        return 0 if in_place else bytes_of(own[name].type)

    def written(name):
        x = own[name]
        if x.op == "tuple":
            return sum(map(written, x.operands))
        if x.op == "bitcast":
            return min(bytes_of(x.type), written(x.operands[0]))
        update = x.op == "dynamic-update-slice"
        return bytes_of(own[x.operands[1]].type if update else x.type)

    parameters = [name for name, x in own.items() if x.op == "parameter"]
    (root,) = (name for name, x in own.items() if x.is_root)
    return sum(map(read, parameters)) + written(root)


@functools.cache
def bytes_of(kind):
    """Returns the bytes of a type such as `(f32[2,3]{1,0}, s32[])`."""
    return sum(
        SIZES.get(name, 4) * math.prod(int(x) for x in dims.split(",") if x)
        for name, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", kind)
    )


if __name__ == "__main__":
    main()
