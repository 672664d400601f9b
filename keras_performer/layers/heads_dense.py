"""The dense layers of `keras.layers.MultiHeadAttention`."""

import math
import re
import string

import keras
import tensorflow as tf

from keras_performer.layers.keras_privates import same_named_entry
from keras_performer.layers.lora_weights import KeepsLora
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.shapes import size


def heads_dense(name, input_shape, num_summed, output_shape, use_bias, **options):
    """A built `HeadsDense`.

    Args:
        name: str, name of the layer.
        input_shape: tuple, shape of its input.
        num_summed: int, how many axes at the end of the input are summed over.
        output_shape: tuple of the sizes that replace them.
        use_bias: bool, whether to add a bias of shape `output_shape`.
        **options: further arguments of `keras.layers.EinsumDense`.
    """
    letters = iter(string.ascii_letters)
    kept = "".join(next(letters) for _ in input_shape[:-num_summed])
    summed = "".join(next(letters) for _ in range(num_summed))
    made = "".join(next(letters) for _ in output_shape)
    for key in ("kernel_initializer", "bias_initializer"):
        # a copy: one initializer object gives the same values each time it is used
        initializer = options[key]
        options[key] = initializer.__class__.from_config(initializer.get_config())
    dense = HeadsDense(
        f"{kept}{summed},{summed}{made}->{kept}{made}",
        output_shape=(*(None,) * (len(kept) - 1), *output_shape),
        bias_axes=made if use_bias else None,
        name=name,
        **options,
    )
    dense.build(input_shape)
    return dense


def token_dense(name, output_dim, **options):
    """A `HeadsDense` from `(B, T, dim)` to `(B, T, output_dim)`, not built.

    Args:
        name: str, name of the layer.
        output_dim: int.
        **options: further arguments of `keras.layers.EinsumDense`.
    """
    dense = HeadsDense(
        "abc,cd->abd",
        output_shape=(None, output_dim),
        bias_axes="d",
        name=name,
        **options,
    )
    dense.supports_masking = True  # tokens stay at their places
    return dense


@keras.saving.register_keras_serializable(package="keras_performer")
class HeadsDense(KeepsLora, keras.layers.EinsumDense):
    """`EinsumDense` over the last axes of its input, as a product of two matrices.

    `EinsumDense` itself is a batched product: the same speed for many tokens, but a
    third of it for one token. And the gradient of its bias adds up in float32, as that
    of `keras.layers.Dense` does not in graphs on CPUs: a bfloat16 sum stops growing.

    Args:
        equation: str, "(kept)(summed),(summed)(made)->(kept)(made)" with at least one
            letter for each, and no letter twice: such as "btd,dnh->btnh".
        output_shape: tuple, `None` for each kept axis but the batch, then the sizes of
            the made axes. An int for a single one.
        activation: as in `EinsumDense`.
        bias_axes: the letters of all made axes, or `None` for no bias.
        **kwargs: the other arguments of `EinsumDense`.

    Raises:
        ValueError: for what `EinsumDense` can do, and this product cannot.
    """

    def __init__(
        self, equation, output_shape, activation=None, bias_axes=None, **kwargs
    ):
        super().__init__(equation, output_shape, activation, bias_axes, **kwargs)
        kept, made = _kept_and_made(equation)
        is_one = isinstance(output_shape, int)
        sizes = (output_shape,) if is_one else tuple(output_shape)
        num_free = len(kept) - 1
        if (
            len(sizes) != num_free + len(made)
            or any(size is not None for size in sizes[:num_free])
            or None in sizes[num_free:]
        ):
            raise ValueError(
                "output_shape must have None for each axis that is kept, but for the "
                f"batch, then the sizes of the axes {made!r}. Use "
                "keras.layers.EinsumDense for other shapes. Received: "
                f"output_shape={output_shape!r}, equation={equation!r}"
            )
        if bias_axes is not None and sorted(bias_axes) != sorted(made):
            raise ValueError(
                f"bias_axes must be {made!r}, all axes that are made, or None. Use "
                "keras.layers.EinsumDense for other biases. Received: "
                f"bias_axes={bias_axes!r}, equation={equation!r}"
            )
        self._made_sizes = sizes[num_free:]

    def call(self, inputs, training=None):
        made = self._made_sizes
        kernel = tf.convert_to_tensor(self.kernel)
        self._check_features(inputs.shape, kernel.shape[: -len(made)])
        num_kept = len(inputs.shape) - (len(kernel.shape) - len(made))
        matrix = tf.reshape(kernel, (-1, math.prod(made)))
        inputs = tf.cast(inputs, matrix.dtype)  # Keras casts no integers
        output = _product(tf.reshape(inputs, (-1, matrix.shape[0])), matrix)
        if self.bias is not None:
            bias = tf.convert_to_tensor(self.bias)
            output = _add_bias(output, tf.reshape(bias, (-1,)))
        kept = [size(inputs, axis) for axis in range(num_kept)]
        return self.activation(tf.reshape(output, (*kept, *made)))

    def _check_features(self, shape, summed):
        if not shape[-len(summed) :].is_compatible_with(summed):
            raise ValueError(
                f"inputs must have {' x '.join(map(str, summed))} features, for which "
                f"the layer {self.name!r} was built: make another for inputs of "
                f"another width. Received: inputs of shape {tuple(shape)}"
            )

    def load_own_variables(self, store):
        store = same_named_entry(store, self)
        if not store.keys():
            raise ValueError(
                f"The file has no weights for {self.path}. Functional and Sequential "
                "models find the layers of a class by their order, and those of "
                "another attention by the name alone: give the attention layers of "
                "both models the same names."
            )
        super().load_own_variables(store)


def _kept_and_made(equation):
    """The letters of an equation that are in the input, or new, in the output."""
    letter = "[a-zA-Z]"
    match = re.fullmatch(rf"({letter}+)({letter}+),\2({letter}+)->\1\3", equation)
    if match:
        letters = "".join(match.groups())
        if len(set(letters)) == len(letters):
            return match[1], match[3]
    raise ValueError(
        "equation must sum over the last axes of the input and put new ones in their "
        'place, "(kept)(summed),(summed)(made)->(kept)(made)", such as '
        '"btd,dnh->btnh". Use keras.layers.EinsumDense for others. Received: '
        f"equation={equation!r}"
    )


def _add_bias(rows, bias):
    if rows.dtype.size > 2:
        return tf.nn.bias_add(rows, bias)

    @custom_gradient
    def add(rows, bias):
        def gradient(drows):
            total = tf.reduce_sum(tf.cast(drows, tf.float32), 0)
            return drows, tf.cast(total, bias.dtype)

        return tf.nn.bias_add(rows, bias), gradient

    return add(rows, bias)


def _product(rows, matrix):
    if rows.shape[0] != 1:
        return tf.matmul(rows, matrix)
    # For one row XLA reads the matrix column by column on CPUs, ten times slower.
    return tf.matmul(tf.pad(rows, [[0, 1], [0, 0]]), matrix)[:1]
