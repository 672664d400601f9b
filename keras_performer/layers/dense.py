"""Dense layers of attention, with the names and weights that Keras gives them."""

import contextlib
import functools
import math
import re
import string

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import keras_privates
from keras_performer.layers.keras_privates import same_named_entry
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.shapes import size

_NAMES = (
    "kernel_initializer",
    "bias_initializer",
    "kernel_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "bias_constraint",
)


def full_weight(layer, name, shape, initializer, **options):
    """A weight that no call rounds to the compute dtype: sums over tokens use it."""
    options |= {"name": name, "shape": shape, "initializer": initializer}
    return layer.add_weight(autocast=False, **options)


def dense_layers(layer, query_shape, value_shape, key_shape):
    """Builds the dense layers of a layer, by name; the output layer comes last."""
    dense = functools.partial(
        heads_dense,
        use_bias=layer.use_bias,
        activity_regularizer=layer._activity_regularizer,
        dtype=layer.dtype_policy,
        **{name: getattr(layer, name) for name in _NAMES},
    )
    heads, kv_heads = layer.num_heads, layer.num_key_value_heads
    sizes = {
        "query": (query_shape, (heads, layer.key_dim)),
        "key": (key_shape, (kv_heads, layer.key_dim)),
        "value": (value_shape, (kv_heads, layer.value_dim)),
    }
    made = {
        name: dense(name, shape, 1, of_heads)
        for name, (shape, of_heads) in sizes.items()
        if name in layer.projections
    }
    attended_shape = (*query_shape[:-1], heads, layer.value_dim)
    output_shape = layer._output_shape or (query_shape[-1],)
    name = "attention_output"
    return {**made, name: dense(name, attended_shape, 2, output_shape)}


def serialized_options(layer):
    """Options of the dense layers as entries of the config."""
    # by keras.initializers, keras.regularizers or keras.constraints
    kinds = {name: getattr(keras, name.split("_")[1] + "s") for name in _NAMES}
    return {x: kind.serialize(getattr(layer, x)) for x, kind in kinds.items()}


# -- LoRA in files: the weights that it trains beside those that it leaves.


# Entries of a file, beside the two weights of LoRA.
_FROZEN, _SCALE = "frozen_", "lora_scale"


class KeepsLora:
    """Mixin for a dense or embedding layer of Keras with `enable_lora`.

    Keras writes the product of LoRA's weights into the kernel when it saves, and
    rounds the sum again if it is quantized; what it loads begins with both of them 0,
    where neither has a gradient. Here files have them as they are, so that a model that
    is loaded gives the same numbers and trains on. A layer without LoRA that loads such
    a file adds the product to its kernel.
    """

    # the kernel, and the two whose product is added to it
    lora_names = "kernel", "lora_kernel_a", "lora_kernel_b"

    def quantize(self, mode=None, type_check=True, **options):
        wanted = mode or getattr(options.get("config"), "mode", None)
        if wanted in ("gptq", "awq"):
            raise ValueError(
                'mode must be "int8", "int4" or "float8": layers inside others would '
                f"not load after {wanted!r}. Received: mode={wanted!r}"
            )
        # Keras' own check refuses every subclass
        return super().quantize(mode, type_check=False, **options)

    def save_own_variables(self, store):
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        entries: dict = {}
        with _without_lora(self):
            super().save_own_variables(entries)
        # by names that Keras' layers do not take for weights without LoRA
        for key, value in entries.items():
            store[_FROZEN + key] = value
        for name in self.lora_names[1:]:
            store[name] = getattr(self, name)
        store[_SCALE] = np.float64(_scale(self))

    def load_own_variables(self, store):
        if _SCALE not in store.keys():
            if self.lora_enabled:
                factor = getattr(self, self.lora_names[1])
                before = np.array(factor)
            super().load_own_variables(store)
            if self.lora_enabled:  # Keras made both of them 0
                factor.assign(before)
            return
        frozen = {
            key.removeprefix(_FROZEN): store[key]
            for key in store.keys()
            if key.startswith(_FROZEN)
        }
        factors = [np.array(store[name]) for name in self.lora_names[1:]]
        rank, scale = len(factors[1]), float(np.array(store[_SCALE]))
        if not self.lora_enabled:
            kernel = getattr(self, self.lora_names[0])
            if self.dtype_policy.quantization_mode is not None:
                raise ValueError(
                    _enable(self, rank, scale, "the kernel is quantized, without LoRA")
                )
            super().load_own_variables(frozen)
            kernel.assign_add(scale * factors[0] @ factors[1])
            return
        if rank != self.lora_rank or not np.isclose(scale, _scale(self)):
            received = f"rank={self.lora_rank}, lora_alpha={self.lora_alpha}"
            raise ValueError(_enable(self, rank, scale, received))
        super().load_own_variables(frozen)
        for name, factor in zip(self.lora_names[1:], factors):
            getattr(self, name).assign(factor)


def _scale(layer):
    return layer.lora_alpha / layer.lora_rank


def _enable(layer, rank, scale, received):
    return (
        f"The file has LoRA weights for {layer.path}: call "
        f"enable_lora({rank}, lora_alpha={scale * rank:g}) of a new layer before its "
        f"weights are loaded. Received: a layer where {received}"
    )


@contextlib.contextmanager
def _without_lora(layer):
    layer.lora_enabled = False
    try:
        yield
    finally:
        layer.lora_enabled = True


def heads_dense(name, input_shape, num_summed, output_shape, use_bias, **options):
    """A built `HeadsDense`, with further arguments of `keras.layers.EinsumDense`.

    It sums over `num_summed` axes at the end of the input, which axes of the sizes
    `output_shape` replace, and with `use_bias` adds a bias of that shape.
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
    """A `HeadsDense` from `(B, T, dim)` to `(B, T, output_dim)`, not built."""
    dense = HeadsDense(
        "abc,cd->abd",
        output_shape=(None, output_dim),
        bias_axes="d",
        name=name,
        **options,
    )
    dense.supports_masking = True  # tokens keep their positions
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
        summed = kernel.shape[: -len(made)]
        if not inputs.shape[-len(summed) :].is_compatible_with(summed):
            raise ValueError(
                f"inputs must have {' x '.join(map(str, summed))} features, for which "
                f"the layer {self.name!r} was built: make another for inputs of "
                f"another width. Received: inputs of shape {tuple(inputs.shape)}"
            )
        num_kept = len(inputs.shape) - len(summed)
        matrix = tf.reshape(kernel, (-1, math.prod(made)))
        inputs = tf.cast(inputs, matrix.dtype)  # Keras casts no integers
        output = _product(tf.reshape(inputs, (-1, matrix.shape[0])), matrix)
        if self.bias is not None:
            bias = tf.convert_to_tensor(self.bias)
            output = _add_bias(output, tf.reshape(bias, (-1,)))
        kept = [size(inputs, axis) for axis in range(num_kept)]
        return self.activation(tf.reshape(output, (*kept, *made)))

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


# -- Dense layers that start as copies of others.


def copied_dense(dense, name):
    """A built layer with weights of its own, which start as those of a built one."""
    copy = CopiedDense.from_config({**dense.get_config(), "name": name})
    copy.start_as(dense)
    copy.build_from_config(dense.get_build_config())
    return copy


@keras.saving.register_keras_serializable(package="keras_performer")
class CopiedDense(HeadsDense):
    """A `HeadsDense` whose weights start as those of another, see `copied_dense`.

    They do so again where a file of weights has none for it.
    """

    _original = None

    def start_as(self, dense):
        """Makes a layer start as another, a built one."""
        self._original = lambda: dense  # not an attribute, which Keras would save
        self.kernel_initializer = dense.kernel_initializer
        self.bias_initializer = dense.bias_initializer

    def add_weight(self, *args, name=None, initializer=None, **options):
        if self._original is not None and name in ("kernel", "bias"):
            weight = getattr(self._original(), name)
            again = initializer  # what the other layer's gave at first

            # called once there are values, which may be after a model is made
            def initializer(shape, dtype):
                if keras_privates.has_value(weight):
                    return keras_privates.value_without_autocast(weight)
                return again(shape, dtype)

        return super().add_weight(*args, name=name, initializer=initializer, **options)

    def load_own_variables(self, store):
        if keras_privates.same_named_entry(store, self).keys():
            super().load_own_variables(store)
        elif self._original is not None:
            self.start_again()

    def start_again(self):
        """Gives it the weights that the other layer has now."""
        for weight, start in zip(self.weights, self._original().weights):
            weight.assign(start)


@keras.saving.register_keras_serializable(package="keras_performer")
class LogitsDense(KeepsLora, keras.layers.Dense):
    """`keras.layers.Dense` that files keep with LoRA as it is."""
