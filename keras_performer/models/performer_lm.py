"""A Performer language model."""

import random

import keras
import tensorflow as tf

from keras_performer import feature_maps
from keras_performer.layers import PerformerAttention, arguments
from keras_performer.layers.axial_position_embedding import AxialPositionEmbedding
from keras_performer.layers.performer_block import PerformerBlock
from keras_performer.layers.token_embedding import TokenEmbedding
from keras_performer.models import recompute
from keras_performer.models.token_training import TokenTraining, WithTargets


@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerLM(TokenTraining):
    """A stack of Performer blocks from token ids to logits.

    Embedding and learned positions, blocks of `PerformerAttention` and feed-forward
    network (each normalized before), a last normalization, and logits in float32
    (float64 under that policy).

    Args:
        vocabulary_size: int, number of token ids.
        max_length: int, the longest sequence.
        num_layers: int, number of blocks.
        num_heads: int, attention heads of a block; it divides `hidden_dim`.
        hidden_dim: int, width of the model.
        intermediate_dim: int, width of the feed-forward networks. Defaults to
            `4 * hidden_dim`, as in the paper's models.
        dropout: float, dropout rate.
        causal: bool, hide later tokens. `generate` needs it.
        feature_map: as in `PerformerAttention`.
        num_random_features: as in `PerformerAttention`.
        chunk_size: as in `PerformerAttention`.
        exact_below: as in `PerformerAttention`. A model with it has no state: leave it
            out of a model that is to `generate`.
        recompute: "block" or "network", what training computes again in chunks of the
            sequence instead of keeping it. "block" keeps one `(B, T, hidden_dim)` for
            each block, "network" (causal only) only the states between chunks; in both
            `fit` and `evaluate` logits exist for a chunk at a time. Sequences must have
            a known length, metrics be means over tokens, and layers add no losses. In
            custom loops and inside other models only "block" acts. Defaults to nothing.
        position_shape: tuple of ints whose product is `max_length`, for sequences that
            run through a grid, such as (64, 64, 3): positions are then embedded by
            row, column and channel. Defaults to `(max_length,)`.
        seed: int, seeds random features and dropout.
        **kwargs: arguments of `keras.Model`, such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor of shape `(B, T)`.
        mask: bool tensor of shape `(B, T)`, false for padding.
        training: bool, whether to apply dropout.
        state: the state after earlier tokens (causal only), from `initial_state` or an
            earlier call.
        return_state: bool, also return the state after the last token.

    Returns:
        Logits of shape `(B, T, vocabulary_size)`, or `(logits, state)`.

    Example:

    >>> model = PerformerLM(256, max_length=1000, num_layers=2, num_heads=2,
    ...                     hidden_dim=16)
    >>> model(keras.ops.zeros((1, 10), "int32")).shape
    TensorShape([1, 10, 256])
    """

    extra_dtypes = ()  # of what `embed` gives to `read_out`

    def __init__(
        self,
        vocabulary_size,
        max_length,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim=None,
        dropout=0.0,
        causal=True,
        recompute=None,
        *,
        feature_map="softmax",
        num_random_features=256,
        chunk_size=None,
        exact_below=None,
        position_shape=None,
        seed=None,
        **kwargs,
    ):
        if kwargs.setdefault("autocast", False):
            raise ValueError(
                "autocast must be False: Keras would cast the state, which stays in "
                "float32, to the compute dtype. Leave it out. Received: autocast="
                f"{kwargs['autocast']}"
            )
        super().__init__(**kwargs)
        self.supports_masking = True
        positive_int = arguments.positive_int
        self.vocabulary_size = positive_int("vocabulary_size", vocabulary_size)
        self.max_length = positive_int("max_length", max_length)
        self.num_layers = positive_int("num_layers", num_layers)
        self.num_heads = positive_int("num_heads", num_heads)
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        if hidden_dim % num_heads:
            raise ValueError(
                "num_heads must divide hidden_dim. Received: "
                f"num_heads={num_heads}, hidden_dim={hidden_dim}"
            )
        self.intermediate_dim = positive_int(
            "intermediate_dim", intermediate_dim, default=4 * self.hidden_dim
        )
        self.dropout = arguments.rate("dropout", dropout)
        self.causal = causal
        self.feature_map = feature_maps.get(feature_map)
        self.num_random_features = positive_int(
            "num_random_features", num_random_features, default=None
        )
        self.chunk_size = positive_int("chunk_size", chunk_size, default=None)
        self.exact_below = arguments.exact_below(exact_below, self.feature_map)
        self.recompute = arguments.recompute(recompute, causal, exact_below)
        self.position_shape = arguments.grid_shape(position_shape, self.max_length)
        self.seed = arguments.seed(seed)
        seeds = random.Random(self.seed)
        dtype = self.dtype_policy
        self.embedding = self.make_embedding()
        self.positions = AxialPositionEmbedding(
            self.position_shape, self.hidden_dim, dtype=dtype, name="positions"
        )
        self.embedding_dropout = keras.layers.Dropout(
            dropout, seed=self.seed, dtype=dtype
        )
        self.blocks = []
        for index in range(num_layers):
            layer_seed = None if seed is None else seeds.randrange(2**31 - 1)
            attention = PerformerAttention(
                self.num_heads,
                self.hidden_dim // self.num_heads,
                dropout=dropout,
                seed=layer_seed,
                feature_map=self.feature_map,
                num_random_features=self.num_random_features,
                causal=causal,
                chunk_size=self.chunk_size,
                exact_below=self.exact_below,
                dtype=dtype,
                name="attention",
            )
            self.blocks.append(
                PerformerBlock(
                    attention,
                    self.intermediate_dim,
                    dropout,
                    layer_seed,
                    dtype=dtype,
                    name=f"block_{index}",
                )
            )
        self.norm = keras.layers.LayerNormalization(dtype=dtype, name="norm")
        self.head = self.make_head()
        # at once, for sequences of any length: exported models then take any too
        self.build((None, None))
        # and traced, as Keras exports only models that have been called
        tf.function(self).get_concrete_function(tf.TensorSpec((1, 1), tf.int32))

    @property
    def input_dtype(self):
        return "int32"  # what `export` declares

    def make_embedding(self):
        """The layer that embeds tokens; override it for other inputs."""
        return TokenEmbedding(
            self.vocabulary_size,
            self.hidden_dim,
            dtype=self.dtype_policy,
            name="embedding",
        )

    def make_head(self):
        """The last layer; override it for outputs other than logits."""
        # losses need more than half precision
        is_float64 = self.compute_dtype == "float64"
        return keras.layers.Dense(
            self.vocabulary_size,
            dtype="float64" if is_float64 else "float32",
            name="logits",
        )

    def build(self, input_shape):
        hidden_shape = (*input_shape[:2], self.hidden_dim)
        self.embedding.build(input_shape)
        self.positions.build(input_shape)
        for layer in (*self.blocks, self.norm, self.head):
            layer.build(hidden_shape)

    def initial_state(self, batch_size):
        """The state before the first token: a nest of tensors, batch first.

        Args:
            batch_size: int or scalar tensor B.
        """
        states = [block.attention.initial_state(batch_size) for block in self.blocks]
        return {**self.embedding_state(batch_size), "blocks": states}

    def embedding_state(self, batch_size):
        """The part of the state that `embed` reads and returns, a dict of tensors."""
        return {"position": tf.zeros((batch_size,), tf.int32)}

    def call(self, inputs, mask=None, training=None, state=None, return_state=False):
        if isinstance(inputs, WithTargets):
            self._check_length(inputs.inputs)  # `embed` sees chunks
            return self.token_values(*inputs, training)
        x, extra, new_state = self.embed(inputs, state)
        x = self.embedding_dropout(x, training=training)
        if self.recompute == "block" and training and state is None:
            if not return_state:
                return self.read_out(recompute.blocks(self, x, mask, training), extra)
        x, states = self.transform(x, mask, training, state, return_state)
        outputs = self.read_out(x, extra)
        return (outputs, {**new_state, "blocks": states}) if return_state else outputs

    def embed(self, inputs, state=None):
        """Embeds tokens; override it for inputs that need more than a table.

        Args:
            inputs: int tensor of shape `(B, T)`.
            state: a dict with the entries of `embedding_state` after earlier tokens,
                or `None`.

        Returns:
            `(x, extra, state)`: embedded tokens `(B, T, hidden_dim)`; a nest of tensors
            `(B, T, ...)` that `read_out` gets, whose dtypes are `extra_dtypes`; and
            the entries of `embedding_state` after these tokens.
        """
        positions = self.embed_positions(inputs, state)  # first, as it checks inputs
        x = self.embedding(inputs) + positions
        return x, (), self.next_positions(inputs, state)

    def embed_positions(self, inputs, state):
        """Embedded positions of `(B, T)` inputs that follow on `state`."""
        self._check_length(inputs)
        positions = tf.range(tf.shape(inputs)[1])[tf.newaxis]
        if state is not None:
            positions += state["position"][:, tf.newaxis]
        # what the shapes do not tell; accelerators leave the check out
        tf.debugging.assert_less(
            positions,
            self.max_length,
            f"The sequence is longer than max_length={self.max_length}.",
        )
        return self.positions(positions)

    def _check_length(self, inputs):
        if not hasattr(inputs, "shape"):
            raise ValueError(
                "inputs must be one int tensor (batch, length). Received: inputs of "
                f"type {type(inputs).__name__}. Pass the tensor itself."
            )
        if len(inputs.shape) != 2 or (inputs.shape[1] or 0) > self.max_length:
            raise ValueError(
                "inputs must have shape (batch, length) with at most "
                f"max_length={self.max_length} tokens. Received: inputs of shape "
                f"{tuple(inputs.shape)}"
            )

    def next_positions(self, inputs, state):
        """The entry of the state that counts the tokens of each sequence."""
        seen = tf.fill((tf.shape(inputs)[0],), tf.shape(inputs)[1])
        return {"position": seen if state is None else seen + state["position"]}

    def transform(self, x, mask, training, state, return_state):
        """The blocks: `(B, T, hidden_dim)` to the same, and their states."""
        states = [None] * len(self.blocks) if state is None else state["blocks"]
        if len(states) != len(self.blocks):
            raise ValueError(
                "state must be what initial_state or an earlier call of a model of as "
                f"many layers gave, {len(self.blocks)}. Received: the states of "
                f"{len(states)} layers"
            )
        new_states = []
        for block, block_state in zip(self.blocks, states):
            x = block(
                x,
                mask=mask,
                training=training,
                state=block_state,
                return_state=return_state,
            )
            if return_state:
                x, block_state = x
                new_states.append(block_state)
        return x, new_states

    def read_out(self, x, extra):
        """The outputs for what the blocks give, `(B, T, hidden_dim)`."""
        return self.head(self.norm(x))

    def next_token_logits(self, outputs):
        """Logits `(B, vocabulary_size)` of the token after outputs `(B, dim)`.

        `generate` samples from them. Override it where `call` returns something else
        than logits, such as the parameters of a distribution.
        """
        return outputs

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.vocabulary_size)

    def compute_output_spec(self, *args, **kwargs):
        # by tracing `call`: it may also return a state
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        names = """vocabulary_size max_length num_layers num_heads hidden_dim
            intermediate_dim dropout causal num_random_features chunk_size
            exact_below recompute position_shape seed"""
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names.split()},
            "feature_map": feature_maps.serialize(self.feature_map),
        }
