"""The block of FNet of KerasHub."""

import importlib.metadata

import keras
import keras_hub

from benchmarks import tensorflow_programs
from benchmarks.peers import programs

# Its names of the parts, and ours.
PARTS = {
    "mixing_layer_norm": "mixing_norm",
    "output_layer_norm": "output_norm",
    "intermediate_dense": "expand",
    "output_dense": "contract",
}


def start(threads):
    version = importlib.metadata.version("keras-hub")
    versions = {**tensorflow_programs.start(threads), "keras": keras.__version__}
    return {**versions, "keras-hub": version}


def program(case):
    keras.utils.set_random_seed(0)
    return programs.program(case, fourier_block)


def fourier_block(case, arrays):
    """`Side` of a block; it takes no mask."""
    layer = keras_hub.layers.FNetEncoder(**case["options"])

    def weights():
        return {renamed(name): x for name, x in programs.by_name(layer).items()}

    return programs.Side(lambda x: layer(x, training=True), weights)


def renamed(name):
    part, weight = name.split("/")
    return f"{PARTS[part]}/{weight}"
