"""What the signatures of layers call the arguments that they share with Keras'."""

import typing

import keras

from keras_performer.ops.tensors import TensorLike

# The inputs of a call: tensors, or what stands for them while a model is made.
LayerInput: typing.TypeAlias = TensorLike | keras.KerasTensor

# Whatever `keras.initializers.get` and its like take; a dict is a config.
Initializer: typing.TypeAlias = str | dict | keras.initializers.Initializer
Regularizer: typing.TypeAlias = str | dict | keras.regularizers.Regularizer | None
Constraint: typing.TypeAlias = str | dict | keras.constraints.Constraint | None
