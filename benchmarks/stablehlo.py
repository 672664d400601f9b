"""From a `tf.function` to StableHLO, what TensorFlow gives to XLA."""

import tensorflow as tf


def lower(function, *specs):
    """StableHLO, as bytes, of a function of nests of `tf.TensorSpec`.

    It may capture variables, and has no ops that only the host can run.
    """
    return _lowered(_compiled(function), specs)


def lower_with_arguments(function, x):
    """`lower` of a function of one tensor x, and the tensors that the program takes.

    These are x, for which a `tf.TensorSpec` may stand, and then what it captured.
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
