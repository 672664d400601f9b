"""Lowers a `tf.function` to StableHLO, the form that TensorFlow gives to XLA."""

import tensorflow as tf


def lower(function, *specs):
    """Returns StableHLO, as bytes, of a function of nests of `tf.TensorSpec`.

    The function may capture variables, but has no ops that only the host can run.
    """
    return _lowered(_compiled(function), specs)


def lower_with_arguments(function, x):
    """Lowers a function of one tensor x; also returns the program's arguments.

    The arguments are x, which may be a `tf.TensorSpec`, and then the captured tensors.
    """
    if not isinstance(x, tf.TensorSpec):
        x = tf.convert_to_tensor(x)
    specs = [tf.TensorSpec(x.shape, x.dtype)]
    function = _compiled(function)
    traced = function.get_concrete_function(*specs)
    values = {id(variable.handle): variable for variable in traced.graph.variables}
    captured = [values.get(id(x), x) for x in traced.captured_inputs]
    return _lowered(function, specs), [x, *map(tf.convert_to_tensor, captured)]


def _compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def _lowered(function, specs):
    return function.experimental_get_compiler_ir(*specs)(
        stage="stablehlo_serialized", platform_name="CPU"
    )
