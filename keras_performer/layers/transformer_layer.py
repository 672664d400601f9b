"""What `PerformerEncoder` and `PerformerDecoder` have in common."""

import typing
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_performer import feature_maps
from keras_performer.layers import arguments, input_checks
from keras_performer.layers.heads_dense import heads_dense
from keras_performer.layers.inner_changes import KeepsInnerChanges
from keras_performer.layers.keras_privates import implicit_mask
from keras_performer.layers.performer_attention import PerformerAttention
from keras_performer.layers.signatures import Initializer

# Those of `PerformerAttention` that both layers take.
_OPTIONS = (
    "feature_map",
    "num_random_features",
    "num_key_value_heads",
    "chunk_size",
    "exact_below",
    "exact_window",
    "initial_log_gain",
    "rotary",
    "qk_norm",
    "jit_compile",
)


class TransformerLayer(KeepsInnerChanges, keras.layers.Layer):
    """The base class of `PerformerEncoder` and `PerformerDecoder`.

    It has their arguments, and their feed-forward network. Whatever a part of the layer
    makes of the tokens is added to them, and normalized before or after.
    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: str | dict | Callable = "relu",
        layer_norm_epsilon: float = 1e-05,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        normalize_first: bool = False,
        seed: int | None = None,
        *,
        feature_map: str | dict | feature_maps.FeatureMap = "softmax",
        num_random_features: int | None | typing.Literal["auto"] = "auto",
        num_key_value_heads: int | None = None,
        chunk_size: int | None = None,
        exact_below: int | None = None,
        exact_window: int | None = None,
        initial_log_gain: float | Sequence[float] = 0.0,
        rotary: bool | Sequence[int] | None = None,
        qk_norm: bool = False,
        jit_compile: bool | typing.Literal["auto"] = "auto",
        **kwargs: typing.Any,
    ) -> None:
        # without autocast Keras leaves the state in float32
        super().__init__(**arguments.without_autocast(kwargs))
        self.supports_masking = True
        self.intermediate_dim = arguments.positive_int(
            "intermediate_dim", intermediate_dim
        )
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.dropout = arguments.rate("dropout", dropout)
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = float(layer_norm_epsilon)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = arguments.boolean("normalize_first", normalize_first)
        self.seed = arguments.seed(seed)
        # raises what is wrong with the options before the size of a head is known
        num_axes = len(rotary) if isinstance(rotary, (list, tuple)) else 1
        attention = PerformerAttention(
            self.num_heads,
            2 * num_axes,
            feature_map=feature_map,
            num_random_features=num_random_features,
            num_key_value_heads=num_key_value_heads,
            chunk_size=chunk_size,
            exact_below=exact_below,
            exact_window=exact_window,
            initial_log_gain=initial_log_gain,
            rotary=rotary,
            qk_norm=qk_norm,
            jit_compile=jit_compile,
            name="attention",  # leaves Keras' count of names as it is
        )
        for name in _OPTIONS:
            setattr(self, name, getattr(attention, name))
        # as it was given: "auto" stays "auto"
        self.num_random_features = attention.get_config()["num_random_features"]

    def build_feed_forward(self, shape):
        """Makes the parts after the attention, for tokens `(B, T, hidden_dim)`."""
        self.feedforward_norm = self.made_norm(shape)
        self.expand = self._dense(
            "expand", shape, self.intermediate_dim, activation=self.activation
        )
        self.contract = self._dense(
            "contract", (*shape[:-1], self.intermediate_dim), shape[-1]
        )
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )

    def made_norm(self, shape):
        """A built normalization of tokens of that shape."""
        norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy
        )
        norm.build(shape)
        return norm

    def made_attention(self, name, shape, value_shape=None, **options):
        """A built `PerformerAttention` with heads that share the width of the tokens.

        Args:
            name: str, name of the layer.
            shape: tuple, the shape of the tokens, which are the queries.
            value_shape: tuple, the shape of the values. Defaults to `shape`.
            **options: arguments of `PerformerAttention`, in the place of this layer's.
        """
        if len(shape) != 3:
            raise ValueError(
                f"{type(self).__name__} needs inputs of shape (batch, length, "
                f"features). Received: inputs of shape {tuple(shape)}"
            )
        attention = PerformerAttention(
            self.num_heads,
            arguments.head_dim(shape[-1], self.num_heads),
            dropout=self.dropout,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name=name,
            **{
                **{name: getattr(self, name) for name in _OPTIONS},
                "seed": self.seed,
                **options,
            },
        )
        attention.build(shape, value_shape)
        return attention

    def tokens(self, inputs, padding_mask):
        """The input in the compute dtype, without Keras' mask, and its mask of keys."""
        if padding_mask is None:
            padding_mask = implicit_mask(inputs)
        input_checks.check_real("inputs", inputs)
        return tf.identity(tf.cast(inputs, self.compute_dtype)), padding_mask

    def before(self, norm, x):
        """What a part of the layer gets."""
        return norm(x) if self.normalize_first else x

    def after(self, norm, x, made, training=None):
        """Tokens x with what a part of the layer made of them."""
        x += self._dropout_layer(made, training=training)
        return x if self.normalize_first else norm(x)

    def feed_forward(self, x, training=None):
        """Tokens with what the feed-forward network makes of each."""
        norm = self.feedforward_norm
        made = self.contract(self.expand(self.before(norm, x)))
        return self.after(norm, x, made, training)

    def compute_output_spec(self, *args, **kwargs):
        # by tracing `call`: it may return more than the tokens
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        names = (
            "intermediate_dim",
            "num_heads",
            "dropout",
            "layer_norm_epsilon",
            "normalize_first",
            "seed",
            *_OPTIONS,
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "feature_map": feature_maps.serialize(self.feature_map),
        }

    def _dense(self, name, shape, dim, **options):
        return heads_dense(
            name,
            shape,
            num_summed=1,
            output_shape=(dim,),
            use_bias=True,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            **options,
        )
