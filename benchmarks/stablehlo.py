"""From a `tf.function` to StableHLO, what TensorFlow gives to XLA."""

import tensorflow as tf


def lower(function, *specs):
    """StableHLO, as bytes, of a function of tensors and captured variables.

    Args:
        function: callable, without ops that only the host can run.
        *specs: nests of `tf.TensorSpec`.
    """
    return _lowered(_compiled(function), specs)


def lower_with_arguments(function, x):
    """`lower`, and the tensors that the program takes: x, then what it captured.

    Args:
        function: as in `lower`, of one tensor.
        x: a tensor or a `tf.TensorSpec`, which then stands for it.
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
