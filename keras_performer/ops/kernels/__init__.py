"""Kernels: the weight functions of attention, as the loops use them."""

from keras_performer.ops.kernels.activation import ActivationKernel
from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.kernels.elu import EluKernel
from keras_performer.ops.kernels.exponential import ExponentialKernel
from keras_performer.ops.kernels.taylor import TaylorKernel

__all__ = [
    "ActivationKernel",
    "EluKernel",
    "ExponentialKernel",
    "Kernel",
    "TaylorKernel",
]
