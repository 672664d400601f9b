"""The dense layers of `keras.layers.MultiHeadAttention`."""

import string

import keras


def heads_dense(name, input_shape, num_summed, output_shape, use_bias, **options):
    """A built `EinsumDense` over the last axes of its input.

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
    dense = keras.layers.EinsumDense(
        f"{kept}{summed},{summed}{made}->{kept}{made}",
        output_shape=(*(None,) * (len(kept) - 1), *output_shape),
        bias_axes=made if use_bias else None,
        name=name,
        **options,
    )
    dense.build(input_shape)
    return dense
