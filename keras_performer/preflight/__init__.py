"""Devices of this machine, and known problems with them."""

from keras_performer.preflight.devices import look_for_devices
from keras_performer.preflight.problems import (
    environment_problems,
    model_problems,
    package_problems,
)

__all__ = [
    "environment_problems",
    "look_for_devices",
    "model_problems",
    "package_problems",
]
