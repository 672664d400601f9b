"""One entry for each exported layer, or several: what `contract.check_layer` runs."""

import dataclasses
import functools
import inspect

import keras
import numpy as np

import keras_performer


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to make a layer and inputs for it.

    Attributes:
        layer_class: the exported class.
        arguments: dict, what to make it with.
        widths: tuple, the last dimension of each input `(B, length, width)`.
        vocabulary_size: int for a layer of token ids `(B, T)`, instead of `widths`.
        half_precision: the largest relative error of mixed_bfloat16; mixed_float16 is
            allowed an eighth of it, as its significand is three bits longer.
        half_gradients: the same of gradients. Defaults to twice as much.
    """

    layer_class: type
    arguments: dict
    widths: tuple = ()
    vocabulary_size: int = None
    half_precision: float = 2e-2
    half_gradients: float = None

    def make(self, **overrides):
        return self.layer_class(**{**self.arguments, **overrides})

    def mask_name(self):
        """Name of the argument that hides tokens of the last input."""
        parameters = inspect.signature(self.layer_class.call).parameters
        which = "decoder_padding_mask", "encoder_padding_mask"
        names = [which[len(self.widths) - 1], "padding_mask", "key_mask", "mask"]
        return next(name for name in names if name in parameters)

    def input_shapes(self):
        """Shapes without batch, of unknown length."""
        if self.vocabulary_size:
            return [(None,)]
        return [(None, width) for width in self.widths]

    def input_dtype(self):
        return "int32" if self.vocabulary_size else None

    def inputs(self, batch=2, length=5, dtype="float32"):
        """Random inputs; the second, of keys, is longer by two."""
        random = np.random.default_rng(batch * length)
        if self.vocabulary_size:
            return [random.integers(self.vocabulary_size, size=(batch, length))]
        return [
            random.standard_normal((batch, length + 2 * index, width)).astype(dtype)
            for index, width in enumerate(self.widths)
        ]


attention = functools.partial(Case, keras_performer.PerformerAttention)
SMALL = dict(num_heads=3, key_dim=4, num_random_features=10, seed=1)


def synthesizer(options, widths):
    common = dict(num_heads=6, key_dim=4, max_length=11, seed=1)
    layer_class = keras_performer.zoo.SynthesizerAttention
    return Case(layer_class, {**common, **options}, widths)


block = functools.partial(Case, keras_performer.layers.PerformerBlock, widths=(7,))

TRANSFORMER_LAYER = dict(
    intermediate_dim=11,
    num_heads=2,
    dropout=0.1,
    activation="gelu",
    layer_norm_epsilon=1e-3,
    num_random_features=10,
    seed=1,
)

language_model = functools.partial(
    Case, keras_performer.PerformerLM, vocabulary_size=601, half_precision=4e-2
)
LM = dict(
    vocabulary_size=601,
    max_length=9,
    num_layers=1,
    num_heads=2,
    hidden_dim=6,
    intermediate_dim=10,
    num_random_features=8,
    exact_window=None,  # within a window the gain has no gradient
    seed=1,
)
OF_FEATURES = {"num_random_features", "exact_window"}
OTHER_LM = {name: LM[name] for name in LM if name not in OF_FEATURES}


def reformer(arguments):
    small = dict(num_heads=3, key_dim=4, num_hashes=2, num_buckets=2, seed=1)
    return Case(
        keras_performer.zoo.ReformerAttention,
        {**small, "sliding_window": 3, **arguments},
        widths=(7,),
    )


CASES = {
    "attention": attention(SMALL, widths=(7,)),
    "attention_of_two_inputs": attention(
        {**SMALL, "value_dim": 5, "output_shape": 11}, widths=(7, 6)
    ),
    "favor_plus_causal": attention(
        {**SMALL, "feature_map": "favor+", "causal": True, "chunk_size": 2},
        widths=(7,),
    ),
    # what is rounded may be to the other side of relu's kink
    "relu_causal": attention(
        {**SMALL, "feature_map": "relu", "causal": True},
        widths=(7,),
        half_gradients=1e-1,
    ),
    # "sigmoid", as sums of weights that can be negative may come close to zero
    "no_projection": attention(
        {**SMALL, "feature_map": "sigmoid", "num_random_features": None}, widths=(7,)
    ),
    "grouped_heads": attention(
        {**SMALL, "num_heads": 6, "num_key_value_heads": 2, "use_bias": False},
        widths=(7,),
    ),
    "exact": Case(
        keras_performer.layers.ExactAttention,
        # without bias, as softmax does not see that of the keys
        dict(
            num_heads=6,
            key_dim=4,
            num_key_value_heads=2,
            use_bias=False,
            causal=True,
            seed=1,
        ),
        widths=(7,),
    ),
    "local": Case(
        keras_performer.layers.LocalAttention,
        dict(num_heads=3, key_dim=4, sliding_window=2, use_bias=False, seed=1),
        widths=(7,),
    ),
    "local_causal": Case(
        keras_performer.layers.LocalAttention,
        dict(num_heads=3, key_dim=4, sliding_window=2, use_bias=False, causal=True),
        widths=(7,),
    ),
    "linear_transformer": Case(
        keras_performer.layers.LinearTransformerAttention,
        dict(num_heads=6, key_dim=4, num_key_value_heads=2, seed=1),
        widths=(7, 6),
    ),
    "linear_transformer_causal": Case(
        keras_performer.layers.LinearTransformerAttention,
        dict(num_heads=3, key_dim=4, chunk_size=2, qk_norm=True, causal=True),
        widths=(7,),
    ),
    "forget_gate": attention({**SMALL, "forget_gate": True}, widths=(7,)),
    "forget_gate_window": attention(
        {**SMALL, "forget_gate": True, "exact_window": 2, "causal": True}, widths=(7,)
    ),
    "forget_gate_exact": Case(
        keras_performer.layers.ExactAttention,
        dict(num_heads=3, key_dim=4, use_bias=False, forget_gate=True, causal=True),
        widths=(7,),
    ),
    "forget_gate_local": Case(
        keras_performer.layers.LocalAttention,
        dict(
            num_heads=6,
            key_dim=4,
            num_key_value_heads=2,
            sliding_window=2,
            use_bias=False,
            forget_gate=True,
            causal=True,
        ),
        widths=(7,),
    ),
    "forget_gate_linear_transformer": Case(
        keras_performer.layers.LinearTransformerAttention,
        dict(num_heads=3, key_dim=4, forget_gate=True, causal=True),
        widths=(7,),
    ),
    "linformer": Case(
        keras_performer.zoo.LinformerAttention,
        dict(num_heads=3, key_dim=4, max_length=11, projection_dim=5, seed=1),
        widths=(7,),
    ),
    "linformer_of_two_inputs": Case(
        keras_performer.zoo.LinformerAttention,
        dict(
            num_heads=6,
            key_dim=4,
            num_key_value_heads=2,
            max_length=11,
            projection_dim=5,
            sharing="none",
            seed=1,
        ),
        widths=(7, 6),
    ),
    "synthesizer": synthesizer({"num_key_value_heads": 2, "causal": True}, widths=(7,)),
    "synthesizer_of_two_inputs": synthesizer({"use_bias": False}, widths=(7, 6)),
    "synthesizer_random": synthesizer({"kind": "random"}, widths=(7, 6)),
    "synthesizer_factorized_random": synthesizer(
        {"kind": "factorized_random", "rank": 3, "causal": True}, widths=(7,)
    ),
    "longformer": Case(
        keras_performer.zoo.LongformerAttention,
        dict(
            num_heads=6,
            key_dim=4,
            sliding_window=2,
            num_global_tokens=1,
            num_key_value_heads=2,
            use_bias=False,
            seed=1,
        ),
        widths=(7,),
    ),
    "longformer_causal": Case(
        keras_performer.zoo.LongformerAttention,
        dict(
            num_heads=3,
            key_dim=4,
            sliding_window=2,
            num_global_tokens=3,
            use_bias=False,
            causal=True,
        ),
        widths=(7,),
    ),
    "big_bird": Case(
        keras_performer.zoo.BigBirdAttention,
        dict(
            num_heads=6,
            key_dim=4,
            block_size=1,
            num_global_blocks=1,
            num_random_blocks=1,
            num_key_value_heads=2,
            use_bias=False,
            seed=1,
        ),
        widths=(7,),
    ),
    "big_bird_causal": Case(
        keras_performer.zoo.BigBirdAttention,
        dict(num_heads=3, key_dim=4, block_size=2, use_bias=False, causal=True),
        widths=(7,),
    ),
    "sinkhorn": Case(
        keras_performer.zoo.SinkhornAttention,
        dict(
            num_heads=4,
            key_dim=3,
            num_key_value_heads=2,
            block_size=2,
            max_length=9,
            use_bias=False,
            seed=1,
        ),
        widths=(7,),
    ),
    "sinkhorn_causal": Case(
        keras_performer.zoo.SinkhornAttention,
        dict(
            num_heads=4,
            key_dim=3,
            num_key_value_heads=2,
            block_size=2,
            max_length=9,
            use_bias=False,
            causal=True,
            num_iterations=2,
            noise=1.0,
            seed=1,
        ),
        widths=(7,),
    ),
    "fourier_mixing": Case(keras_performer.zoo.FourierMixing, {}, widths=(7,)),
    "token_mixing": Case(
        keras_performer.zoo.TokenMixing,
        dict(max_length=9, intermediate_dim=11),
        widths=(7,),
    ),
    "spatial_gating": Case(
        keras_performer.zoo.SpatialGatingUnit,
        dict(max_length=9, intermediate_dim=10),
        widths=(7,),
    ),
    "spatial_gating_causal": Case(
        keras_performer.zoo.SpatialGatingUnit,
        dict(max_length=9, intermediate_dim=10, causal=True),
        widths=(7,),
    ),
    "block_mixing": block(
        dict(
            attention=keras.saving.serialize_keras_object(
                keras_performer.zoo.FourierMixing("ortho")
            ),
            intermediate_dim=11,
        )
    ),
    "lm_mixing": language_model(
        {
            **OTHER_LM,
            "attention": keras.saving.serialize_keras_object(
                keras_performer.zoo.SpatialGatingUnit(9, 10, causal=True)
            ),
        }
    ),
    "reformer": reformer({}),
    "reformer_causal": reformer({"causal": True, "rotary": True, "value_dim": 5}),
    "reversible": Case(
        keras_performer.zoo.ReversibleBlock,
        dict(
            attention=[
                keras.saving.serialize_keras_object(one)
                for one in (
                    keras_performer.PerformerAttention(**SMALL),
                    keras_performer.layers.LocalAttention(
                        3, 4, sliding_window=2, use_bias=False
                    ),
                )
            ],
            intermediate_dim=11,
            dropout=0.1,
            seed=1,
        ),
        widths=(7,),
    ),
    "exact_window": attention({**SMALL, "exact_window": 2}, widths=(7,)),
    "exact_window_causal": attention(
        {**SMALL, "exact_window": 2, "initial_log_gain": -1.0, "causal": True},
        widths=(7,),
    ),
    "rotary": attention({**SMALL, "rotary": True, "causal": True}, widths=(7,)),
    "rotary_grid": attention({**SMALL, "rotary": (3, 2)}, widths=(7,)),
    "qk_norm": attention({**SMALL, "qk_norm": True, "causal": True}, widths=(7,)),
    "taylor": attention(
        {**SMALL, "feature_map": "taylor", "num_random_features": None}, widths=(7,)
    ),
    "block": block(
        dict(
            # the config of one, as each layer that is made of this has its own
            attention=keras.saving.serialize_keras_object(
                keras_performer.PerformerAttention(**SMALL, causal=True)
            ),
            intermediate_dim=11,
            dropout=0.1,
            seed=1,
        )
    ),
    "block_without_attention": block(dict(attention=None, intermediate_dim=11)),
    "block_conv": block(
        dict(
            attention=keras.saving.serialize_keras_object(
                keras_performer.layers.LocalAttention(
                    3, 4, sliding_window=2, use_bias=False
                )
            ),
            intermediate_dim=11,
            conv_kernel_size=3,
        )
    ),
    "block_conv_causal": block(
        dict(
            attention=keras.saving.serialize_keras_object(
                keras_performer.PerformerAttention(**SMALL, causal=True)
            ),
            intermediate_dim=11,
            conv_kernel_size=3,
            conv_padding="causal",
            dropout=0.1,
            seed=1,
        )
    ),
    "encoder": Case(keras_performer.PerformerEncoder, TRANSFORMER_LAYER, widths=(6,)),
    "decoder": Case(
        keras_performer.PerformerDecoder,
        {**TRANSFORMER_LAYER, "normalize_first": True, "exact_window": 2},
        widths=(6,),
    ),
    "decoder_of_two_inputs": Case(
        keras_performer.PerformerDecoder,
        {**TRANSFORMER_LAYER, "qk_norm": True},
        widths=(6, 4),
        half_gradients=6e-2,
    ),
    "lm": language_model(LM),
    "lm_exact": language_model(
        {
            **OTHER_LM,
            "attention": keras.saving.serialize_keras_object(
                keras_performer.layers.ExactAttention(2, 3, use_bias=False, causal=True)
            ),
        }
    ),
    "lm_rotary": language_model(
        {
            **LM,
            "hidden_dim": 8,
            "position_embedding": "rotary",
            "position_shape": (3, 3),
        }
    ),
    "lm_conv": language_model({**LM, "conv_kernel_size": 4}),
    "lm_recompute": language_model({**LM, "recompute": "block", "chunk_size": 3}),
}
