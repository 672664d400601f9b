"""A Performer language model."""

import math
import random
import types
import typing

import keras
import tensorflow as tf

from keras_performer import feature_maps
from keras_performer.layers import EmbeddingLayer, arguments, call_inputs, choice
from keras_performer.layers import state as layer_state
from keras_performer.layers.block import PerformerBlock
from keras_performer.layers.config import KeepsInnerChanges, TracesSpec, as_layer
from keras_performer.layers.dense import LogitsDense
from keras_performer.layers.embeddings import AxialPositionEmbedding, TokenEmbedding
from keras_performer.layers.keras_privates import implicit_mask, unlock, with_mask
from keras_performer.layers.performer import MAX_SEED
from keras_performer.layers.state import HasInitialState
from keras_performer.models import exported
from keras_performer.ops.shapes import size, sum_dtype
from keras_performer.ops.slices import current_slices
from keras_performer.recompute import TokenTraining, WithTargets, passes


@choice.takes_options
@keras.saving.register_keras_serializable(package="keras_performer")
class PerformerLM(
    arguments.JoinsSignatures,
    HasInitialState,
    TracesSpec,
    KeepsInnerChanges,
    TokenTraining,
):
    """Language model with attention of linear cost, from token ids to logits.

    It has an embedding, blocks, a last normalization, and a head that returns logits in
    float32 (float64 under that policy). A block normalizes and applies
    `PerformerAttention`, then normalizes and applies a feed-forward network. Positions
    are in the blocks (rotary) or added to the embedded tokens (learned).
    You can pass another attention, embedding or head.
    A causal model has exact weights for the last 64 tokens, and forget gates.
    `exact_window=None` and `forget_gate=False` turn them off.

    Args:
        vocabulary_size: int, number of token ids.
        num_layers: int, number of blocks.
        num_heads: int, number of attention heads of a block. It must divide
            `hidden_dim`.
        hidden_dim: int, width of the model.
        intermediate_dim: int, width of the feed-forward networks. Defaults to
            `4 * hidden_dim`, as in the paper's models.
        dropout: float, dropout rate. Defaults to `0.0`.
        causal: bool, hide later tokens. `generate` needs it. Defaults to `True`.
        max_length: int, the longest sequence. Required for learned positions and for a
            grid. Defaults to `None`, no limit.
        conv_kernel_size: int, width of a convolution in each block, as in
            `PerformerBlock`. With `recompute` the model must be causal. Defaults to
            `None`, no convolution.
        recompute: "block" or "network", saves memory in training: activations are
            computed again, in chunks of the sequence, instead of being kept. "block"
            keeps one `(B, T, hidden_dim)` tensor for each block; "network" (causal
            only) keeps only the states between chunks. With both, `fit` and `evaluate`
            compute logits one chunk at a time. The guide *Very long sequences* has
            rules for losses, metrics and custom loops. Defaults to `None`, keep all.
        position_shape: tuple of ints whose product is `max_length`, for sequences that
            run through a grid, such as (64, 64, 3). Positions are then embedded by row,
            column and channel. Defaults to `(max_length,)`.
        position_embedding: "rotary" rotates queries and keys in every block, as
            `rotary` of `PerformerAttention` does, with `position_shape` as the grid. It
            has no weights. "learned" adds trained vectors to the embedded tokens.
            "rotary" has no effect in a block without attention or with a `MixingLayer`.
            Defaults to "rotary" if the attention has queries and keys of an even head
            size, or is an `AttentionLayer` made with `rotary`; to "learned" in a grid,
            without attention and with a mixer. The guide *Positions* compares them.
        seed: int, seeds random features and dropout. Defaults to `None`.
        attention: "performer", "exact" (`ExactAttention`), "none" (the no-attention
            baseline), an `AttentionLayer` or a `MixingLayer`, or the config of one; or
            a list of these, one for each block. Each block gets a copy of a layer, with
            its own seed, the dtype and positions of the model, and the model's dropout
            if the layer has 0. Exact attention and mixers have no state, so `generate`
            and `recompute` do not work with them. Defaults to `"performer"`.
        embedding: layer from inputs `(B, T)` to `(B, T, hidden_dim)`, before positions
            are added. Use an `EmbeddingLayer` if it needs a state or passes something
            to the head. Defaults to a table of `vocabulary_size` tokens.
        head: layer from `(B, T, hidden_dim)` to the outputs, called with `(x, extra)`
            if the embedding returns `extra`. `recompute` needs its
            `compute_output_shape`. If outputs are not logits, `generate` needs its
            method `next_token_logits`, from outputs `(B, dim)` to logits
            `(B, vocabulary_size)`. Defaults to `Dense(vocabulary_size)`.
        exact_window: int, as in `PerformerAttention`. Defaults to 64 in a causal model
            with features that estimate softmax, which learns more with it (the guide
            *Window, gain and gate* has results); otherwise to `None`, no window.
        forget_gate: bool, as in `PerformerAttention` and `ExactAttention`. Defaults to
            `True` in a causal model, which learns more with it; otherwise to `False`.
        forget_gate_bias: pair of floats, as in `PerformerAttention`. Defaults to
            `(2.0, max(7.0, log(4 * max_length)))`, so that a head remembers the longest
            sequence; without `max_length` to `(2.0, 7.0)`.
        **kwargs: further arguments of `PerformerAttention`, such as `feature_map` or
            `num_key_value_heads`, or of `ExactAttention`, for blocks with "performer"
            or "exact"; and of `keras.Model`, such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor of shape `(B, T)`.
        mask: bool tensor of shape `(B, T)`, false for padding.
        training: bool, whether to apply dropout.
        segment_ids: int tensor of shape `(B, T)`, as in `PerformerAttention`. Positions
            count from the start of the row, not of the segment. Not with `recompute`.
        state: the state after earlier tokens (causal only), from `get_initial_state`
            or an earlier call.
        return_state: bool, also return the state after the last token.

    Returns:
        Logits of shape `(B, T, vocabulary_size)`, or the output of `head`; with
        `return_state` also the state. The state is a dict: `"position"` is an int32
        tensor `(B,)` that counts tokens, `"embedding"` the state of the embedding (`()`
        for a table), and `"blocks"` a list of the states of the blocks.

    Raises:
        ValueError: if `num_heads` does not divide `hidden_dim`; if learned positions
            have no `max_length`; if the product of `position_shape` is not
            `max_length`; if `recompute="network"` is not causal; or if the attention
            does not support an argument.

    Example:

    >>> model = PerformerLM(256, num_layers=2, num_heads=2, hidden_dim=16)
    >>> model(keras.ops.zeros((1, 10), "int32")).shape
    TensorShape([1, 10, 256])
    """

    # defaults for the attentions of causal models
    option_defaults = types.MappingProxyType({"exact_window": 64, "forget_gate": True})

    def __init__(
        self,
        vocabulary_size: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
        max_length: int | None = None,
        recompute: typing.Literal[None, "block", "network"] = None,
        conv_kernel_size: int | None = None,
        position_shape: tuple[int, ...] | None = None,
        position_embedding: typing.Literal["learned", "rotary"] | None = None,
        seed: int | None = None,
        attention: choice.Choice = "performer",
        embedding: keras.layers.Layer | dict | None = None,
        head: keras.layers.Layer | dict | None = None,
        **kwargs: typing.Any,
    ) -> None:
        options, kwargs = arguments.split(kwargs)
        super().__init__(**arguments.of_keras(self, kwargs))
        arguments.check_dtype(self)
        self.supports_masking = True
        positive_int = arguments.positive_int
        self.vocabulary_size = positive_int("vocabulary_size", vocabulary_size)
        self.max_length = positive_int("max_length", max_length, default=None)
        self.num_layers = positive_int("num_layers", num_layers)
        self.num_heads = positive_int("num_heads", num_heads)
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        head_dim = arguments.head_dim(self.hidden_dim, self.num_heads)
        self.intermediate_dim = positive_int(
            "intermediate_dim", intermediate_dim, default=4 * self.hidden_dim
        )
        self.dropout = arguments.rate("dropout", dropout)
        self.causal = arguments.boolean("causal", causal)
        self.conv_kernel_size = positive_int(
            "conv_kernel_size", conv_kernel_size, default=None
        )
        self.recompute = arguments.recompute(recompute, causal)
        self.position_shape = arguments.grid_shape(position_shape, self.max_length)
        defaults = self._defaults(options)
        options = {**choice.fitting(defaults, attention), **options}
        # for configs, which make these blocks again even if others replace them later
        self._attentions = choice.AttentionChoice(
            type(self), attention, options, self.num_heads, self.causal, self.num_layers
        )
        self.position_embedding, rotary = self._attentions.positions(
            position_embedding, self.position_shape or (None,), head_dim
        )
        if self.position_embedding == "learned" and self.max_length is None:
            raise ValueError(
                "Learned positions need max_length, the number of their vectors: give "
                'one, or use position_embedding="rotary" with an even head size. '
                "Received: max_length=None"
            )
        self.seed = arguments.seed(seed)
        given = {"embedding": embedding, "head": head}
        self._default_layers = tuple(x for x in given if given[x] is None)
        seeds = random.Random(self.seed)
        dtype = self.dtype_policy
        self.embedding = as_layer(
            "embedding", embedding, or_none=True
        ) or TokenEmbedding(
            self.vocabulary_size, self.hidden_dim, dtype=dtype, name="embedding"
        )
        self.positions = None
        if self.position_embedding == "learned":
            self.positions = AxialPositionEmbedding(
                self.position_shape, self.hidden_dim, dtype=dtype, name="positions"
            )
        self.embedding_dropout = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=dtype
        )
        self.blocks = []
        for index in range(self.num_layers):
            layer_seed = None if seed is None else seeds.randrange(MAX_SEED)
            made = self._attentions.make(
                index,
                num_heads=self.num_heads,
                key_dim=head_dim,
                dropout=self.dropout,
                causal=self.causal,
                rotary=rotary,
                dtype=dtype,
                seed=layer_seed,
            )
            block = PerformerBlock(
                made,
                self.intermediate_dim,
                self.dropout,
                layer_seed,
                conv_kernel_size=self.conv_kernel_size,
                conv_padding="causal" if self.causal else "same",
                dtype=dtype,
                name=f"block_{index}",
            )
            passes.check_block(recompute, self.causal, block)
            self.blocks.append(block)
        self.norm = keras.layers.LayerNormalization(dtype=dtype, name="norm")
        self.head = as_layer("head", head, or_none=True) or LogitsDense(
            self.vocabulary_size,
            dtype=sum_dtype(self.compute_dtype).name,  # losses need at least float32
            name="logits",
        )
        # now, for sequences of any length, so that exported models take any length, too
        self.build((None, None))
        unlock(self)  # subclasses may add layers, like subclasses of functional models

    def _defaults(self, options):
        """Returns default options of the attentions, given the options of the call."""
        defaults = dict(self.option_defaults) if self.causal else {}
        features = feature_maps.get(options.get("feature_map", "softmax"))
        if not features.estimates_softmax:
            defaults.pop("exact_window", None)
        chosen = {**defaults, **options}
        if chosen.get("forget_gate") and self.max_length is not None:
            # with bias 7 a gate forgets half in 760 tokens, too fast for long sequences
            biases = 2.0, max(7.0, math.log(4 * self.max_length))
            defaults["forget_gate_bias"] = biases
        return defaults

    @property
    def input_dtype(self):
        return "int32"  # what `tf.saved_model.save` declares

    def build(self, input_shape):
        hidden_shape = (*input_shape[:2], self.hidden_dim)
        shapes = [
            (self.head, hidden_shape),
            (self.embedding, input_shape),
            *([] if self.positions is None else [(self.positions, input_shape)]),
            *((layer, hidden_shape) for layer in (*self.blocks, self.norm)),
        ]
        for layer, shape in shapes:
            if not layer.built:  # a layer that was passed in may be built
                layer.build(shape)

    def export(self, filepath, format="tf_saved_model", verbose=None, **kwargs):
        """Exports the model for use without this package, as in Keras.

        The SavedModel of a causal model with a state has three signatures. They take
        any batch size, and the state has a fixed size:

        - `serve`, also named `serving_default`: tokens `(B, T)` to outputs, the whole
          model;
        - `prefill`: `tokens` `(B, T)`, a prompt without padding, to the `logits`
          `(B, vocabulary_size)` of the next token and the state, a flat dict of tensors
          such as `state_position` and `state_blocks_0_attention_sums`;
        - `decode`: `tokens` `(B, 1)` and the state to the same outputs.

        A model without a state has `serve` only: a model that is not causal, or with
        `attention="exact"` or a mixer. If `kwargs` has anything but
        `input_signature`, every model has `serve` only.

        Args:
            filepath: path to write to.
            format: as in `keras.Model.export`. Defaults to `"tf_saved_model"`.
            verbose: as in `keras.Model.export`. Defaults to `None`.
            **kwargs: as in `keras.Model.export`. `input_signature` applies to `serve`;
                it defaults to any batch size and length.
        """
        if kwargs.get("input_signature") is None:
            # Keras knows the inputs only of models that have been called
            tokens = keras.InputSpec(dtype=self.input_dtype, shape=(None, None))
            kwargs["input_signature"] = [tokens]
        # other arguments cannot apply to `prefill` and `decode`
        plain = format == "tf_saved_model" and kwargs.keys() == {"input_signature"}
        if plain and exported.has_state(self):
            return exported.export(self, filepath, verbose=verbose, **kwargs)
        return super().export(filepath, format, verbose=verbose, **kwargs)

    def get_initial_state(
        self, batch_size: int | tf.Tensor, packed: bool = False
    ) -> dict[str, typing.Any]:
        """Returns the state before the first token: nested tensors, batch first.

        Args:
            batch_size: int or scalar tensor B.
            packed: bool, whether you will pass `segment_ids`. Defaults to `False`.
        """
        batch_size = arguments.batch_size(batch_size)
        states = [block.get_initial_state(batch_size, packed) for block in self.blocks]
        return {**self.embedding_state(batch_size), "blocks": states}

    def embedding_state(self, batch_size):
        """Returns the part of the state that `embed` reads and returns."""
        remembered = ()
        if isinstance(self.embedding, EmbeddingLayer):
            remembered = self.embedding.empty_state(batch_size)
        position = tf.zeros((batch_size,), tf.int32)
        return {"position": position, "embedding": remembered}

    def _positions(self, length, state):
        """Returns checked positions of tokens after a state, `(1, T)` or `(B, T)`."""
        limit = self.max_length
        if limit is not None:
            length = arguments.up_to_max_length(self, length)
        positions = call_inputs.next_positions(length, state, current_slices())
        if limit is not None:
            # shapes do not count the state's tokens; accelerators leave this check out
            tf.debugging.assert_less(
                positions,
                limit,
                f"{type(self).__name__} takes at most max_length tokens: make it with "
                "the max_length of the longest sequence, or begin with a new state. "
                "Received: a sequence, with the tokens of its state, longer than "
                f"max_length={limit}",
            )
        return positions

    def call(
        self,
        inputs,
        mask=None,
        training=None,
        segment_ids=None,
        state=None,
        return_state=False,
    ):
        if current_slices() is not None:
            self._check_slices(state, return_state)
        if isinstance(inputs, WithTargets):
            call_inputs.check_tokens(inputs.inputs, self.max_length)
            return self.token_values(*inputs, training)
        call_inputs.check_tokens(inputs, self.max_length)
        if state is not None:
            layer_state.check_entries(state, ("position", "embedding", "blocks"))
        x, extra, new_state = self.embed(inputs, state, training)
        mask = implicit_mask(x) if mask is None else mask
        recomputes = self.recompute == "block" and training
        if recomputes and state is None and not return_state:
            if segment_ids is not None:
                raise ValueError(
                    "recompute needs one segment in each row: train with "
                    "recompute=None, or without segment_ids. Received: segment_ids, "
                    f"and recompute={self.recompute!r}"
                )
            return self.read_out(passes.blocks(self, x, mask, training), extra)
        states = [None] * len(self.blocks) if state is None else state["blocks"]
        arguments.check_depth(states, len(self.blocks))
        new_states = []
        for block, block_state in zip(self.blocks, states):
            x = block(
                x,
                mask=mask,
                training=training,
                segment_ids=segment_ids,
                state=block_state,
                return_state=return_state,
            )
            if return_state:
                x, block_state = x
                new_states.append(block_state)
        outputs = self.read_out(x, extra)
        state = {**new_state, "blocks": new_states}
        return (outputs, state) if return_state else outputs

    def _check_slices(self, state, return_state):
        """Raises a `ValueError` if the model cannot handle slices of sequences."""
        layer_state.check_no_state(self, state, return_state)
        if self.compiled and self.jit_compile:
            raise ValueError(
                "With sequence_parallel the replicas exchange states, so Keras must "
                "not compile a step for one of them: use model.compile(..., "
                "jit_compile=False). Received: jit_compile=True"
            )
        if self.recompute is not None:
            passes.check_slices(self)
        if tf.nest.flatten(self.embedding_state(1)["embedding"]):
            raise ValueError(
                "With sequence_parallel an embedding cannot see earlier tokens: use "
                "one without a state. Received: an embedding of type "
                f"{type(self.embedding).__name__}"
            )

    def embed(self, inputs, state=None, training=None):
        """Embeds tokens `(B, T)`, and adds learned positions if there are any.

        Returns `(x, extra, state)`: embedded tokens `(B, T, hidden_dim)`; what the
        embedding passes to `read_out`, `()` for nothing; and the state after these
        tokens, with the entries of `embedding_state`.
        """
        layer_state.check_batch(state, inputs)
        positions = self._positions(size(inputs, 1), state)
        call_inputs.check_ids(inputs, self.embedding)
        start = self.embedding_state(tf.shape(inputs)[0]) if state is None else state
        if isinstance(self.embedding, EmbeddingLayer):
            x, extra, remembered = self.embedding(inputs, start["embedding"])
        else:
            x, extra, remembered = self.embedding(inputs), (), ()
        arguments.check_embedded(x, self.hidden_dim)
        mask = implicit_mask(x)
        x = tf.cast(x, self.compute_dtype)
        if self.positions is not None:
            x += self.positions(positions)
        x = self.embedding_dropout(x, training=training)
        x = with_mask(x, mask)  # of `mask_zero`; computed tensors have no mask
        position = start["position"] + size(positions, 1)
        return x, extra, {"position": position, "embedding": remembered}

    def read_out(self, x, extra):
        """Returns the outputs for `(B, T, hidden_dim)` tokens of the last block."""
        x = self.norm(x)
        return self.head(x, extra) if tf.nest.flatten(extra) else self.head(x)

    def next_token_logits(self, outputs):
        """Returns logits `(B, vocabulary_size)` of the next token.

        `generate` samples from them. They are the `outputs`, `(B, dim)`, themselves,
        unless the head has a method `next_token_logits`.
        """
        if hasattr(self.head, "next_token_logits"):
            return self.head.next_token_logits(outputs)
        return outputs

    def compute_output_shape(self, input_shape):
        return self.head.compute_output_shape((*input_shape, self.hidden_dim))

    @classmethod
    def from_config(cls, config, custom_objects=None):
        made_of = choice.of_older_file(config, cls.option_defaults)
        return super().from_config(made_of, custom_objects)

    def get_config(self):
        parts = {**super().get_config(), **self._attentions.config()}
        return {**parts, **dict.fromkeys(self._default_layers)}
