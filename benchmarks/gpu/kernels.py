"""Counts the kernels of training steps on a GPU, and their time; writes kernels.json.

python -m benchmarks.gpu.kernels [--output runs/gpu]
"""

import collections
import pathlib
import tempfile

import keras
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks import runner
from benchmarks.gpu import layers

CASES = [
    layers.case("features", form, "xla", 1, 65_536)
    for form in ("causal", "bidirectional")
]
STEPS, SHOWN = 4, 45


def main(argv=None):
    output = runner.options(__doc__, argv, output=runner.RUNS / "gpu").output
    keras.config.set_dtype_policy("mixed_bfloat16")
    results = {**layers.environment(), "rows": []}
    runner.add_rows(output / "kernels.json", results, CASES, profiled)


def profiled(case):
    """Returns the kernels of a step, their milliseconds, and the longest of them."""
    step = layers.step_of(layers.layer_of(case), case["mode"] == "xla")
    x = layers.input_of(case)
    for _ in range(2):
        step(x)
    layers.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(STEPS):
                step(x)
            layers.synchronize()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    ms, count = collections.Counter(), collections.Counter()
    for plane in space.planes:
        for line in plane.lines if "GPU" in plane.name else ():
            for event in line.events if "Stream" in line.name else ():
                name = plane.event_metadata[event.metadata_id].name
                ms[name] += event.duration_ps / 1e9 / STEPS
                count[name] += 1 / STEPS
    longest = [[round(x, 3), count[name], name] for name, x in ms.most_common(SHOWN)]
    return {"kernels": count.total(), "ms": ms.total(), "longest": longest}


if __name__ == "__main__":
    main()
