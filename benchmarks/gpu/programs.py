"""Lowers layers to programs for `benchmarks/gpu/run.py`; needs TensorFlow and no GPU.

    python -m benchmarks.gpu.programs [--output runs/gpu]

A program is a file of StableHLO, as TensorFlow gives it to XLA; `programs.json`
describes its arguments. If numbers are compared, another file has the arguments, and
the layer's results in float64 on this machine. Takes six minutes on two CPU cores.
"""

import pathlib
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from benchmarks import runner, stablehlo
from benchmarks.gpu import cases
from keras_performer.ops import blocks


def main(argv=None):
    options = runner.options(__doc__, argv, output=pathlib.Path("runs/gpu"))
    for kind, of_kind in cases.KINDS.items():
        write_all(of_kind(), options.output / kind)


def write_all(some, folder):
    """Writes the programs of some cases, and `programs.json`, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = []
    for case in some:
        print(case, flush=True)
        programs.append(write(case, f"{len(programs):03}", folder))
    written = {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_performer": keras_performer.__version__,
        "lowered_on": runner.machine(),
        "programs": programs,
    }
    runner.save(folder / "programs.json", written)


def write(case, name, folder):
    """Writes the files of a case; returns its entry in `programs.json`."""
    if case["row"] == cases.FUSED:
        return case
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(case["policy"])
    try:
        step, x, expected = cases.program(case)
    finally:
        keras.config.set_dtype_policy(policy)
    module, arguments = lowered_as(case, step, x)
    (folder / f"{name}.mlirbc").write_bytes(module)
    if expected is not None:
        numbers = {f"argument{i}": x for i, x in enumerate(arguments)}
        # float32 halves the size, and 8 digits are enough
        numbers |= {
            f"expected{i}": np.asarray(x, "float32") for i, x in enumerate(expected)
        }
        np.savez_compressed(folder / f"{name}.npz", **numbers)
    return {"file": name, **case, "arguments": [described(x) for x in arguments]}


def lowered_as(case, step, x):
    """Lowers a step with a case's precision and block sizes; returns its arguments."""
    rounded = tf.config.experimental.tensor_float_32_execution_enabled()
    # "full" keeps float32 in products; otherwise GPUs round factors to 10 bits
    tf.config.experimental.enable_tensor_float_32_execution(case["precision"] != "full")
    try:
        with mock.patch.object(blocks, "has_gpu", lambda: case["blocks"] == "GPU"):
            return stablehlo.lower_with_arguments(step, x)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(rounded)


def described(x):
    """Describes a tensor, so that `run.py` can sample one of this shape."""
    described = {"shape": x.shape.as_list(), "dtype": x.dtype.name}
    if isinstance(x, tf.TensorSpec):
        return {**described, "std": 1.0}
    return {**described, "std": float(tf.math.reduce_std(tf.cast(x, "float32")))}


if __name__ == "__main__":
    main()
