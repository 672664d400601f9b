"""Cases for `tests/contract.py`: one or several for each exported layer."""

import dataclasses
import functools
import inspect

import keras
import numpy as np

import keras_performer
from keras_performer import layers, zoo


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to make a layer and inputs for it.

    Attributes:
        layer_class: the exported class.
        arguments: dict, constructor arguments.
        widths: tuple, the last dimension of each input `(B, length, width)`.
        vocabulary_size: int, for a layer of token ids `(B, T)`, instead of `widths`.
        half_precision: largest relative error of mixed_bfloat16; mixed_float16 is
            allowed an eighth, as its significand is three bits longer.
        half_gradients: largest relative error of gradients. Defaults to twice
            `half_precision`.
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
        """Returns the name of the argument that hides tokens of the last input."""
        parameters = inspect.signature(self.layer_class.call).parameters
        which = "decoder_padding_mask", "encoder_padding_mask"
        names = [which[len(self.widths) - 1], "padding_mask", "key_mask", "mask"]
        return next(name for name in names if name in parameters)

    def symbolic_inputs(self):
        """Returns symbolic tensors of unknown batch size and length."""
        if self.vocabulary_size:
            return [keras.Input((None,), dtype="int32")]
        return [keras.Input((None, width)) for width in self.widths]

    def inputs(self, batch=2, length=5):
        """Returns random inputs; the second one, for keys, is longer by two."""
        random = np.random.default_rng(batch * length)
        if self.vocabulary_size:
            return [random.integers(self.vocabulary_size, size=(batch, length))]
        return [
            random.standard_normal((batch, length + 2 * index, width)).astype("float32")
            for index, width in enumerate(self.widths)
        ]


ABSTRACT = {layers.AttentionLayer, layers.EmbeddingLayer, layers.MixingLayer}


def exported(*bases):
    """Returns all exported subclasses of `bases`, without the abstract ones."""
    parts = vars(keras_performer), vars(layers), vars(zoo)
    classes = {x for part in parts for x in part.values() if inspect.isclass(x)}
    return {x for x in classes if issubclass(x, bases)} - ABSTRACT


def serialized(layer):
    """Returns the config of a layer, so that cases do not share the layer itself.

    Keras would number the name, by the layers that were made before.
    """
    config = keras.saving.serialize_keras_object(layer)
    config["config"]["name"] = "inner"
    return config


attention = functools.partial(Case, keras_performer.PerformerAttention)
block = functools.partial(Case, layers.PerformerBlock, widths=(7,))
language_model = functools.partial(
    Case, keras_performer.PerformerLM, vocabulary_size=601, half_precision=4e-2
)

ONE, TWO = (7,), (7, 6)  # widths
THREE = dict(num_heads=3, key_dim=4)
SIX = dict(num_heads=6, key_dim=4, num_key_value_heads=2)
SMALL = dict(**THREE, num_random_features=10, seed=1)
CAUSAL = dict(**SMALL, causal=True)
# without bias, as the bias of keys cancels in softmax
NO_BIAS = dict(use_bias=False)
NEAR = dict(**THREE, **NO_BIAS, sliding_window=2)
GATE = dict(forget_gate=True, causal=True)
LINFORMER = dict(max_length=11, projection_dim=5, seed=1)
SYNTHESIZER = dict(num_heads=6, key_dim=4, max_length=11, seed=1)
SINKHORN = dict(num_heads=4, key_dim=3, num_key_value_heads=2, **NO_BIAS)
SINKHORN |= dict(block_size=2, max_length=9, seed=1)
HASHES = dict(**THREE, num_hashes=2, num_buckets=2, seed=1, sliding_window=3)
GATING = dict(max_length=9, intermediate_dim=10)
BLOCK = dict(
    attention=serialized(keras_performer.PerformerAttention(**CAUSAL)),
    intermediate_dim=11,
    dropout=0.1,
    seed=1,
)
LOCAL = serialized(layers.LocalAttention(**NEAR))
TRANSFORMER = dict(
    intermediate_dim=11,
    num_heads=2,
    dropout=0.1,
    activation="gelu",
    layer_norm_epsilon=1e-3,
    num_random_features=10,
    seed=1,
)
OTHER_LM = dict(
    vocabulary_size=601,
    max_length=9,
    num_layers=1,
    num_heads=2,
    hidden_dim=6,
    intermediate_dim=10,
    seed=1,
)
# without a window, as the gain has no gradient if all keys are inside
LM = dict(**OTHER_LM, num_random_features=8, exact_window=None)
GRID_LM = dict(hidden_dim=8, position_embedding="rotary", position_shape=(3, 3))

CASES = {
    "attention": attention(SMALL, ONE),
    "attention_of_two_inputs": attention(
        {**SMALL, "value_dim": 5, "output_shape": 11}, TWO
    ),
    "favor_plus_causal": attention(
        {**CAUSAL, "feature_map": "favor+", "chunk_size": 2}, ONE
    ),
    # rounding may move a number to the other side of relu's kink
    "relu_causal": attention(
        {**CAUSAL, "feature_map": "relu"}, ONE, half_gradients=1e-1
    ),
    # "sigmoid", as sums of weights of both signs may come close to zero
    "no_projection": attention(
        dict(**THREE, seed=1, feature_map="sigmoid", num_random_features=None), ONE
    ),
    "grouped_heads": attention({**SMALL, **SIX, **NO_BIAS}, ONE),
    "exact": Case(
        layers.ExactAttention, dict(**SIX, **NO_BIAS, causal=True, seed=1), ONE
    ),
    "local": Case(layers.LocalAttention, dict(**NEAR, seed=1), ONE),
    "local_causal": Case(layers.LocalAttention, dict(**NEAR, causal=True), ONE),
    "linear_transformer": Case(
        layers.LinearTransformerAttention, dict(**SIX, seed=1), TWO
    ),
    "linear_transformer_causal": Case(
        layers.LinearTransformerAttention,
        dict(**THREE, chunk_size=2, qk_norm=True, causal=True),
        ONE,
    ),
    "forget_gate": attention({**SMALL, "forget_gate": True}, ONE),
    "forget_gate_window": attention({**SMALL, **GATE, "exact_window": 2}, ONE),
    "forget_gate_exact": Case(
        layers.ExactAttention, dict(**THREE, **NO_BIAS, **GATE), ONE
    ),
    "forget_gate_local": Case(layers.LocalAttention, {**NEAR, **SIX, **GATE}, ONE),
    "forget_gate_linear_transformer": Case(
        layers.LinearTransformerAttention, dict(**THREE, **GATE), ONE
    ),
    "linformer": Case(zoo.LinformerAttention, dict(**THREE, **LINFORMER), ONE),
    "linformer_of_two_inputs": Case(
        zoo.LinformerAttention, dict(**SIX, **LINFORMER, sharing="none"), TWO
    ),
    "synthesizer": Case(
        zoo.SynthesizerAttention,
        dict(**SYNTHESIZER, num_key_value_heads=2, causal=True),
        ONE,
    ),
    "synthesizer_of_two_inputs": Case(
        zoo.SynthesizerAttention, dict(**SYNTHESIZER, **NO_BIAS), TWO
    ),
    "synthesizer_random": Case(
        zoo.SynthesizerAttention, dict(**SYNTHESIZER, kind="random"), TWO
    ),
    "synthesizer_factorized_random": Case(
        zoo.SynthesizerAttention,
        dict(**SYNTHESIZER, kind="factorized_random", rank=3, causal=True),
        ONE,
    ),
    "longformer": Case(
        zoo.LongformerAttention, {**NEAR, **SIX, "num_global_tokens": 1, "seed": 1}, ONE
    ),
    "longformer_causal": Case(
        zoo.LongformerAttention, dict(**NEAR, num_global_tokens=3, causal=True), ONE
    ),
    "big_bird": Case(
        zoo.BigBirdAttention,
        dict(
            **SIX,
            **NO_BIAS,
            block_size=1,
            num_global_blocks=1,
            num_random_blocks=1,
            seed=1,
        ),
        ONE,
    ),
    "big_bird_causal": Case(
        zoo.BigBirdAttention, dict(**THREE, **NO_BIAS, block_size=2, causal=True), ONE
    ),
    "sinkhorn": Case(zoo.SinkhornAttention, SINKHORN, ONE),
    "sinkhorn_causal": Case(
        zoo.SinkhornAttention,
        dict(**SINKHORN, causal=True, num_iterations=2, noise=1.0),
        ONE,
    ),
    "fourier_mixing": Case(zoo.FourierMixing, {}, ONE),
    "token_mixing": Case(zoo.TokenMixing, dict(max_length=9, intermediate_dim=11), ONE),
    "spatial_gating": Case(zoo.SpatialGatingUnit, GATING, ONE),
    "spatial_gating_causal": Case(
        zoo.SpatialGatingUnit, dict(**GATING, causal=True), ONE
    ),
    "block_mixing": block(
        dict(attention=serialized(zoo.FourierMixing("ortho")), intermediate_dim=11)
    ),
    "lm_mixing": language_model(
        {**OTHER_LM, "attention": serialized(zoo.SpatialGatingUnit(9, 10, causal=True))}
    ),
    "reformer": Case(zoo.ReformerAttention, HASHES, ONE),
    "reformer_causal": Case(
        zoo.ReformerAttention,
        dict(**HASHES, causal=True, rotary=True, value_dim=5),
        ONE,
    ),
    "reversible": Case(
        zoo.ReversibleBlock,
        {
            **BLOCK,
            "attention": [
                serialized(keras_performer.PerformerAttention(**SMALL)),
                LOCAL,
            ],
        },
        ONE,
    ),
    "exact_window": attention({**SMALL, "exact_window": 2}, ONE),
    "exact_window_causal": attention(
        {**CAUSAL, "exact_window": 2, "initial_log_gain": -1.0}, ONE
    ),
    "rotary": attention({**CAUSAL, "rotary": True}, ONE),
    "rotary_grid": attention({**SMALL, "rotary": (3, 2)}, ONE),
    "qk_norm": attention({**CAUSAL, "qk_norm": True}, ONE),
    "taylor": attention(
        dict(**THREE, seed=1, feature_map="taylor", num_random_features=None), ONE
    ),
    "block": block(BLOCK),
    "block_without_attention": block(dict(attention=None, intermediate_dim=11)),
    "block_conv": block(dict(attention=LOCAL, intermediate_dim=11, conv_kernel_size=3)),
    "block_conv_causal": block(
        dict(**BLOCK, conv_kernel_size=3, conv_padding="causal")
    ),
    "encoder": Case(keras_performer.PerformerEncoder, TRANSFORMER, (6,)),
    "decoder": Case(
        keras_performer.PerformerDecoder,
        dict(**TRANSFORMER, normalize_first=True, exact_window=2),
        (6,),
    ),
    "decoder_of_two_inputs": Case(
        keras_performer.PerformerDecoder,
        dict(**TRANSFORMER, qk_norm=True),
        (6, 4),
        half_gradients=0.1,  # CPUs that multiply in bfloat16 round more
    ),
    "lm": language_model(LM),
    "lm_exact": language_model(
        {
            **OTHER_LM,
            "attention": serialized(
                layers.ExactAttention(2, 3, causal=True, **NO_BIAS)
            ),
        }
    ),
    "lm_rotary": language_model({**LM, **GRID_LM}),
    "lm_conv": language_model({**LM, "conv_kernel_size": 4}),
    "lm_recompute": language_model({**LM, "recompute": "block", "chunk_size": 3}),
}
