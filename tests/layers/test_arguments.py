"""Constructors check their arguments, and raise errors that say what to do."""

import itertools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, layers
from tests.cases import CASES
from tests.layers.inputs import normal

# Words of the error, wrong values, and arguments of cases.
WRONG = [
    (
        "positive int",
        [0, -1, 1.5, True],
        """attention num_heads key_dim num_random_features chunk_size exact_window;
        local sliding_window; linear_transformer_causal chunk_size;
        longformer sliding_window; big_bird block_size; sinkhorn block_size max_length;
        linformer max_length projection_dim; synthesizer max_length;
        reformer num_buckets num_hashes sliding_window; lm vocabulary_size;
        spatial_gating max_length intermediate_dim; block intermediate_dim;
        token_mixing max_length intermediate_dim; block conv_kernel_size;
        encoder intermediate_dim num_heads exact_window""",
    ),
    (
        "positive int",
        [None],
        """attention key_dim; longformer sliding_window; big_bird block_size;
        linformer max_length; token_mixing intermediate_dim; reformer num_hashes""",
    ),
    (r"positive int below 2\*\*31", [2**31], "attention chunk_size"),
    (
        "an int, 0 or more",
        [-1, 1.5, None],
        "longformer num_global_tokens; big_bird num_global_blocks num_random_blocks",
    ),
    (
        "True or False",
        ["no", 3.0, np.ones(2)],
        """attention causal use_bias; exact qk_norm; spatial_gating causal;
        encoder normalize_first""",
    ),
    (
        "True, False",
        [np.ones(2), 3],
        "attention jit_compile; linear_transformer_causal jit_compile",
    ),
    (r"a float|\[0, 1\)", [1.0, -0.1, True], "attention dropout; block dropout"),
    ("a float", [1.0], "encoder dropout"),
    ("an int", ["a", True], "attention seed; block seed; encoder seed"),
    ("an int or a tuple of ints", ["8", "", True], "attention output_shape"),
    ("a positive int or a tuple", [0, (4, -1)], "attention output_shape"),
    ("a positive int or a", [(-2, -3)], "lm position_shape"),
    ("must divide num_heads", [4], "attention num_key_value_heads"),
    ("must divide hidden_dim", [4], "encoder num_heads"),
    ("must divide", [3], "encoder num_key_value_heads"),
    ("one of softmax, favor", [None], "attention feature_map"),
    ("give exact_window as well", [[0.0, -3.0, 0.0]], "attention initial_log_gain"),
    ("weights of keys outside", [2.0], "encoder initial_log_gain"),
    (
        "a finite float",
        ["-3", float("nan"), True, np.ones((1, 6))],
        "exact_window initial_log_gain",
    ),
    (
        "finite floats, one for each of the",
        [[1.0], [0, "1"]],
        "exact_window initial_log_gain",
    ),
    (
        "two finite floats",
        [(1.0,), 3.0, "12", (2.0, np.inf), None, (1, 2, 3, 4), (True, 0)],
        "forget_gate_exact forget_gate_bias",
    ),
    ("give forget_gate=True as well", [(1.0, 9.0)], "exact forget_gate_bias"),
    (
        "key_dim must be divisible by 8",
        [(2, 2, 2, 2)],
        "attention rotary; exact rotary",
    ),
    (
        "must be",
        [64, 0, "line", (0, 2), (2.5,), (), {"grid": 2}],
        "exact rotary",
    ),
    ("None, True", ["yes"], "encoder rotary"),
    ("no queries and keys to rotate", [True], "synthesizer rotary"),
    ("no queries and keys to normalize", [True], "synthesizer qk_norm"),
    ("learns the norms of queries", [True], "reformer qk_norm"),
    ("must be num_heads, or None", [1], "reformer num_key_value_heads"),
    ('"none", "headwise" or "key-value"', ["layerwise"], "linformer sharing"),
    (r"0 or more and below 2\*\*31 or None", [-1], "sinkhorn num_iterations"),
    ("a positive float", [0.0, True], "sinkhorn temperature"),
    ("0 or a positive float", [-1.0, float("nan")], "sinkhorn noise"),
    ('"dense", "random" or "factorized_random"', ["dens"], "synthesizer kind"),
    ('Only kind="factorized_random" has a rank', [8], "synthesizer rank"),
    ("must be even", [3], "reformer num_buckets"),
    ("must be even", [7], "spatial_gating intermediate_dim"),
    ('"backward" or "ortho"', [None], "fourier_mixing norm"),
    ("an AttentionLayer or a MixingLayer", ["performer"], "block attention"),
    ('"causal", "same" or None', ["valid"], "block_conv conv_padding"),
    ("later tokens", ["same"], "block_conv_causal conv_padding"),
    (
        "an AttentionLayer or the conf",
        [None, [], [None], "performer"],
        "reversible attention",
    ),
]


@pytest.mark.parametrize(("wanted", "values", "arguments"), WRONG)
def test_a_wrong_argument_says_what_was_wanted(wanted, values, arguments):
    for name, *of_case in map(str.split, arguments.split(";")):
        for argument, value in itertools.product(of_case, values):
            with pytest.raises(ValueError) as error:
                layer = CASES[name].make(**{argument: value})
                if name == "encoder":  # its attention checks the argument
                    layer.build((2, 3, 6))
            before, _, received = str(error.value).partition("Received: ")
            assert argument in before and re.search(wanted, before), before
            if not isinstance(value, (np.ndarray, list)):
                assert f"{argument}={value!r}" in received.replace('"', "'"), received


def test_numbers_may_be_of_numpy():
    options = dict(num_heads=np.int64(6), key_dim=np.int32(4), seed=np.int64(1))
    layer = PerformerAttention(**options, dropout=np.float32(0.5), causal=np.bool_(1))
    config = json.loads(json.dumps(layer.get_config()))
    assert (config["num_heads"], config["dropout"], config["causal"]) == (6, 0.5, True)


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_batches_of_different_sizes_raise_when_a_graph_runs(sizes):
    layer = PerformerAttention(2, 4)
    layer.build((None, None, 7))
    called = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 7))] * 2)
    message = "query, key and value must have the same batch"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        called(*(normal((size, 5, 7)) for size in sizes))


# arguments of Keras, with values that have no effect and other values
OF_KERAS = {
    "attention_axes": ([None, 1, (1,), [1]], [2, (1, 2), [-2]]),
    "sliding_window": ([None], [64, 0]),
    "flash_attention": ([None, False], [True]),
    "use_gate": ([False], [True]),
}


@pytest.mark.parametrize("kind", [PerformerAttention, layers.ExactAttention])
@pytest.mark.parametrize("name", OF_KERAS)
def test_what_keras_has_beside_is_refused(kind, name):
    config, (nothing, others) = kind(2, 4).get_config(), OF_KERAS[name]
    for value in nothing:
        given = {**config, name: value}
        assert kind(**given).get_config() == kind.from_config(given).get_config()
        assert kind(**given).get_config() == config
    for value in (*others, np.ones(2)):
        message = f"{kind.__name__} has no argument {name}: .*Received: {name}="
        for make in (lambda given: kind(**given), kind.from_config):
            with pytest.raises(ValueError, match=message):
                make({**config, name: value})


@pytest.mark.parametrize("built", [False, True])
def test_a_config_of_keras_makes_ours(built):
    options = dict(num_heads=2, key_dim=4, dropout=0.1, use_bias=False, seed=3)
    exact = keras.layers.MultiHeadAttention(**options)
    if built:
        exact.build((2, 3, 7), (2, 3, 7))
    config = exact.get_config()
    assert config["attention_axes"] == ((1,) if built else None)
    ours = PerformerAttention.from_config(config).get_config()
    # both serialize objects in the same way
    common = {name: config[name] for name in config if name in ours}
    assert {name: ours[name] for name in common} == {**common, "value_dim": 4}
    assert config.keys() - ours.keys() <= set(OF_KERAS)


def test_a_subclass_may_pass_on_an_argument_that_other_layers_have_not():
    """Layers without a `sliding_window` refuse it, but this subclass has one."""

    class Passing(layers.LocalAttention):
        def __init__(self, num_heads, key_dim, **kwargs):
            super().__init__(num_heads, key_dim, **kwargs)

    config = Passing(2, 4, sliding_window=3).get_config()
    assert Passing.from_config(config).sliding_window == 3


def test_causal_lengths_that_are_unknown_are_compared_in_the_graph():
    layer = PerformerAttention(2, 4, causal=True, exact_window=4)
    layer(normal((1, 9, 8)))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 8))] * 2)
    def call(query, value):
        return layer(query, value)

    x = normal((1, 9, 8))
    np.testing.assert_allclose(call(x, x), layer(x), atol=1e-6)
    for length in 7, 12:
        with pytest.raises(tf.errors.InvalidArgumentError, match="as many queries"):
            call(x, normal((1, length, 8)))
