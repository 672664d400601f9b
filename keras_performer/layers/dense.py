"""Dense layers of attention, with the names and weights that Keras gives them."""

import functools
import math
import string

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import keras_privates
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.shapes import size


def full_weight(layer, name, shape, initializer, **options):
    """Adds a weight that Keras does not cast to the compute dtype, for token sums."""
    options |= {"name": name, "shape": shape, "initializer": initializer}
    return layer.add_weight(autocast=False, **options)


def dense_layers(layer, query_shape, value_shape, key_shape):
    """Builds the dense layers of an attention, a dict by name; output layer last."""
    dense = functools.partial(
        heads_dense,
        use_bias=layer.use_bias,
        kernel_initializer=layer.kernel_initializer,
        bias_initializer=layer.bias_initializer,
        kernel_regularizer=layer.kernel_regularizer,
        bias_regularizer=layer.bias_regularizer,
        activity_regularizer=layer._activity_regularizer,
        kernel_constraint=layer.kernel_constraint,
        bias_constraint=layer.bias_constraint,
        dtype=layer.dtype_policy,
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


# -- LoRA in files: its trained weights are kept apart from the frozen kernel.


# Entries of a file besides the two weights of LoRA.
_FROZEN, _SCALE = "frozen_", "lora_scale"


class KeepsLora:
    """Mixin for Keras' dense or embedding layers, whose files keep LoRA's weights.

    Keras saves the sum of the kernel and the product of LoRA's weights, and rounds it
    again if the kernel is quantized. A loaded layer then has 0 for both weights of
    LoRA, and neither gets a gradient. This mixin saves all weights as they are: a
    loaded model gives the same numbers and trains on. A layer without LoRA that loads
    such a file adds the product to its kernel.
    """

    # the kernel, and the two weights whose product is added to it
    lora_names = "kernel", "lora_kernel_a", "lora_kernel_b"

    def quantize(self, mode=None, type_check=True, **options):
        wanted = mode or getattr(options.get("config"), "mode", None)
        if wanted in ("gptq", "awq"):
            raise ValueError(
                f'mode must be "int8", "int4" or "float8": after {wanted!r}, Keras '
                "cannot load layers inside other layers from a file. Received: "
                f"mode={wanted!r}"
            )
        # Keras' own check refuses every subclass
        return super().quantize(mode, type_check=False, **options)

    def save_own_variables(self, store):
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        entries: dict = {}
        self.lora_enabled = False  # so that Keras saves the kernel without LoRA
        try:
            super().save_own_variables(entries)
        finally:
            self.lora_enabled = True
        # under names that Keras' layers do not mistake for weights without LoRA
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
            if self.lora_enabled:  # Keras set both weights to 0: neither would train
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
                received = "the kernel is quantized, without LoRA"
                raise _needs_lora(self, rank, scale, received)
            super().load_own_variables(frozen)
            kernel.assign_add(scale * factors[0] @ factors[1])
            return
        if rank != self.lora_rank or not np.isclose(scale, _scale(self)):
            received = f"rank={self.lora_rank}, lora_alpha={self.lora_alpha}"
            raise _needs_lora(self, rank, scale, received)
        super().load_own_variables(frozen)
        for name, factor in zip(self.lora_names[1:], factors):
            getattr(self, name).assign(factor)


def _scale(layer):
    return layer.lora_alpha / layer.lora_rank


def _needs_lora(layer, rank, scale, received):
    """Returns the error for a layer without the LoRA of a file."""
    return ValueError(
        f"The file has LoRA weights for {layer.path}: call "
        f"enable_lora({rank}, lora_alpha={scale * rank:g}) of a new layer before its "
        f"weights are loaded. Received: a layer where {received}"
    )


def heads_dense(name, input_shape, num_summed, output_shape, use_bias, **options):
    """Builds a `HeadsDense`; `options` are arguments of `keras.layers.EinsumDense`.

    The layer sums over the last `num_summed` axes of the input and puts axes of the
    sizes `output_shape` there. With `use_bias` it adds a bias of shape `output_shape`.
    """
    letters = iter(string.ascii_letters)
    kept = "".join(next(letters) for _ in input_shape[:-num_summed])
    summed = "".join(next(letters) for _ in range(num_summed))
    made = "".join(next(letters) for _ in output_shape)
    for key in ("kernel_initializer", "bias_initializer"):
        # a copy: one initializer object gives the same values at each use
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
    """Makes an unbuilt `HeadsDense` from `(B, T, dim)` to `(B, T, output_dim)`."""
    shape = None, output_dim
    return HeadsDense(
        "abc,cd->abd", output_shape=shape, bias_axes="d", name=name, **options
    )


@keras.saving.register_keras_serializable(package="keras_performer")
class HeadsDense(KeepsLora, keras.layers.EinsumDense):
    """`EinsumDense` over the last axes of its input, as a product of two matrices.

    `EinsumDense` itself computes a batched product. It has the same speed for many
    tokens, but a third of the speed for one token. Here the bias sums its gradient in
    float32: a sum in bfloat16, as of `keras.layers.Dense` in graphs on CPUs, stops
    growing.

    The equation must be "(kept)(summed),(summed)(made)->(kept)(made)" without a letter
    twice, such as "btd,dnh->btnh", and `bias_axes` all made axes. `output_shape` has
    `None` for each kept axis except the batch.
    """

    def __init__(self, equation, output_shape, **kwargs):
        super().__init__(equation, output_shape, **kwargs)
        self._made_sizes = tuple(size for size in output_shape if size is not None)

    def call(self, inputs, training=None):
        made = self._made_sizes
        kernel = tf.convert_to_tensor(self.kernel)
        summed = kernel.shape[: -len(made)]
        if not inputs.shape[-len(summed) :].is_compatible_with(summed):
            raise ValueError(
                f"inputs must have {' x '.join(map(str, summed))} features, as when "
                f"the layer {self.name!r} was built: make a new layer for inputs of "
                f"another size. Received: inputs of shape {tuple(inputs.shape)}"
            )
        num_kept = len(inputs.shape) - len(summed)
        matrix = tf.reshape(kernel, (-1, math.prod(made)))
        inputs = tf.cast(inputs, matrix.dtype)  # Keras does not cast integers
        output = _product(tf.reshape(inputs, (-1, matrix.shape[0])), matrix)
        if self.bias is not None:
            bias = tf.convert_to_tensor(self.bias)
            output = _add_bias(output, tf.reshape(bias, (-1,)))
        kept = [size(inputs, axis) for axis in range(num_kept)]
        return self.activation(tf.reshape(output, (*kept, *made)))

    def load_own_variables(self, store):
        store = keras_privates.same_named_entry(store, self)
        if not store.keys():
            raise ValueError(
                f"The file has no weights for {self.path}. Functional and Sequential "
                "models find layers of the same class by their order, but attention "
                "layers of different classes only by their names: give the attention "
                "layers of both models the same names."
            )
        super().load_own_variables(store)


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
    """Builds a copy of a built dense layer; its weights start with the same values."""
    copy = CopiedDense.from_config({**dense.get_config(), "name": name})
    copy.start_as(dense)
    copy.build_from_config(dense.get_build_config())
    return copy


@keras.saving.register_keras_serializable(package="keras_performer")
class CopiedDense(HeadsDense):
    """A `HeadsDense` whose weights start as copies of another's, see `copied_dense`.

    They are copied again if a file has no weights for this layer.
    """

    _original = None

    def start_as(self, dense):
        """Lets the weights of this unbuilt layer start as copies of a built layer's."""
        self._original = lambda: dense  # as an attribute, Keras would save the layer
        self.kernel_initializer = dense.kernel_initializer
        self.bias_initializer = dense.bias_initializer

    def add_weight(self, *args, name=None, initializer=None, **options):
        if self._original is not None and name in ("kernel", "bias"):
            weight = getattr(self._original(), name)
            again = initializer  # samples the first values of the other layer again

            # Keras calls this when it makes values, which may be after making the model
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
        """Assigns the current weights of the other layer."""
        for weight, start in zip(self.weights, self._original().weights):
            weight.assign(start)


@keras.saving.register_keras_serializable(package="keras_performer")
class LogitsDense(KeepsLora, keras.layers.Dense):
    """`keras.layers.Dense` whose files keep LoRA's weights, see `KeepsLora`."""
