"""Compiles StableHLO for a TPU that is described but not there.

TensorFlow lowers a function to StableHLO (`benchmarks/tpu/steps.py`), and libtpu
compiles it. The modules are passed by a private interface of JAX, so `setup.cfg` pins
the versions.
"""

import dataclasses
import functools
import os
import time
import typing

import numpy as np

# JAX and libtpu read these variables when they are loaded.
os.environ.update(
    JAX_PLATFORMS="cpu",
    # does not ask the metadata service of Google Cloud
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
    # without this a second process that compiles ends with an error
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
)

from jax._src import compiler  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402
from jax._src.lib import xla_client  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of high-bandwidth memory that one replica needs.

    Attributes:
        arguments: the weights, the optimizer's variables and the batch.
        temporaries: intermediate results, with the compiler's packing losses.
        outputs: the new values of the variables, and the metrics.
        aliased: outputs that overwrite arguments.
    """

    arguments: int
    temporaries: int
    outputs: int
    aliased: int

    @property
    def total(self):
        return self.arguments + self.temporaries + self.outputs - self.aliased


class Compiled(typing.NamedTuple):
    """Memory, text of the optimized program, and seconds of compilation."""

    memory: Memory
    text: str
    seconds: float


def text_of(stablehlo):
    """Returns readable text for the result of `steps.lower`."""
    with mlir.make_ir_context():
        return str(ir.Module.parse(stablehlo))


def compile_for(stablehlo, slice_):
    """Compiles the result of `steps.lower` for all replicas of a `Slice`.

    Raises `jax.errors.JaxRuntimeError` if the compiler fails, for memory or otherwise.
    """
    chips = devices(slice_)
    client = chips[0].client
    options = compiler.get_compile_options(
        num_replicas=len(chips),
        num_partitions=1,
        device_assignment=np.array([[chip.id] for chip in chips]),
        backend=client,
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo)
        _remove_copies(module)
        start = time.perf_counter()
        executable = client.compile(
            module,
            executable_devices=xla_client.DeviceList(tuple(chips)),
            compile_options=options,
        )
        seconds = time.perf_counter() - start
    stats = executable.get_compiled_memory_stats()
    memory = Memory(
        arguments=stats.argument_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
    )
    return Compiled(memory, executable.hlo_modules()[0].to_string(), seconds)


@functools.cache
def devices(slice_):
    """Returns the chips of a `Slice`, as JAX describes them."""
    topology = topologies.get_topology_desc(
        platform="tpu",
        topology_name=slice_.topology,
        chip_config_name=slice_.chip_config,
    )
    return topology.devices[: slice_.replicas]


def _remove_copies(module):
    """Replaces `mhlo.copy(x)` by x.

    TensorFlow marks the new values of variables by this op. The compiler only takes
    StableHLO, which has no such op.
    """
    copies = []

    def visit(operation):
        for region in operation.regions:
            for block in region:
                for inner in block:
                    if inner.operation.name == "mhlo.copy":
                        copies.append(inner.operation)
                    visit(inner.operation)

    visit(module.operation)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
    for copy in copies:
        copy.erase()
