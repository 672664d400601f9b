"""Attention and mixers against their definitions in NumPy, and properties of each.

`test_every_layer.py` and `tests/test_contract.py` test properties of all of them.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, layers, zoo
from keras_performer.layers import ExactAttention, LinearTransformerAttention
from keras_performer.ops import blocks
from tests.contract import relative_error
from tests.layers import twins, zoo_twins
from tests.layers.inputs import BIAS, language_model, normal
from tests.layers.twins import assert_is_twin, randomize, weights_of
from tests.models.token_models import loss_and_gradients, small_model

GRID = (2, 3, 2)
FEATURES = dict(num_random_features=8, chunk_size=3)
PLACES = dict(max_length=13, intermediate_dim=6)
BLOCKS = dict(block_size=3, max_length=13, num_iterations=4)
HASHES = dict(num_hashes=2, num_buckets=4, sliding_window=3, num_key_value_heads=None)
SIGMOID = dict(feature_map="sigmoid", num_random_features=None)
# Class and arguments of each kind; its twin has the same name, or is
# `twins.attention`.
KINDS = {
    "exact": (ExactAttention, {}),
    "local": (layers.LocalAttention, dict(sliding_window=3)),
    "elu": (LinearTransformerAttention, dict(chunk_size=3)),
    "features": (PerformerAttention, FEATURES),
    "favor+": (PerformerAttention, dict(feature_map="favor+", **FEATURES)),
    "relu": (PerformerAttention, dict(feature_map="relu", **FEATURES)),
    "square": (PerformerAttention, dict(feature_map="square", **FEATURES)),
    "no projection": (PerformerAttention, SIGMOID),
    "taylor": (PerformerAttention, dict(feature_map="taylor", chunk_size=3)),
    "window": (PerformerAttention, dict(exact_window=3, **FEATURES)),
    "taylor, window": (PerformerAttention, dict(exact_window=3, feature_map="taylor")),
    "longformer": (
        zoo.LongformerAttention,
        dict(num_global_tokens=3, sliding_window=3),
    ),
    "big_bird": (zoo.BigBirdAttention, dict(block_size=2, num_random_blocks=1)),
    "linformer": (zoo.LinformerAttention, dict(max_length=11, projection_dim=6)),
    "synthesizer": (zoo.SynthesizerAttention, dict(max_length=11)),
    "reformer": (zoo.ReformerAttention, HASHES),
    "sinkhorn": (zoo.SinkhornAttention, BLOCKS),
    "fourier": (zoo.FourierMixing, {}),
    "token_mixing": (zoo.TokenMixing, PLACES),
    "spatial_gating": (zoo.SpatialGatingUnit, PLACES),
}
MIXERS = {"fourier", "token_mixing", "spatial_gating"}


def made(kind, /, *widths, **options):
    """Returns a built layer with random weights, and two query heads per key head."""
    layer_class, own = KINDS[kind]
    heads = dict(num_heads=4, key_dim=12, value_dim=5, num_key_value_heads=2, seed=5)
    common = {} if kind in MIXERS else heads
    layer = layer_class(**{"dtype": "float64", **common, **own, **options})
    layer.build(*((None, None, width) for width in widths or (5,)))
    randomize(layer, std=0.4)
    return layer


def arguments(kind, words, length):
    """Returns the call's arguments that `words` ask for."""
    random, given, tokens = np.random.default_rng(length), {}, np.arange(length)
    if "masked" in words:
        holes = (tokens % 4 != 2) & (tokens < max(length - 2, 1))
        blocks = tokens // 3 % 2 == 1  # and padding on the left
        given["mask" if kind in MIXERS else "key_mask"] = np.stack([holes, blocks])
    if "global" in words:
        given["global_mask"] = np.zeros((2, length), bool)
        for row, count in zip(given["global_mask"], (3, 1)):
            row[random.permutation(length)[:count]] = True
    if "causal" in words:
        given["use_causal_mask"] = True
    if "packed" in words:  # an id that repeats later is another segment
        one = np.select([tokens == 3, tokens < 9], [2, 7])
        given["segment_ids"] = np.stack([one, tokens >= 8]).astype(int)
    if "placed" in words:
        given["positions"] = random.integers(0, 10**6, (2, length))
    return given


@pytest.mark.parametrize(
    ("kind", "options", "lengths", "words"),
    [
        ("exact", "causal forget_gate", [11], "masked packed"),
        ("exact", "forget_gate qk_norm", [11], "masked"),
        ("exact", "grid", [11], ""),
        ("local", "causal forget_gate rotary", [11], "masked packed"),
        ("local", "forget_gate", [11], ""),
        ("local", "qk_norm", [11], "masked packed"),
        # chunks of local attention have 64 tokens, or more in longer windows
        ("local", dict(sliding_window=1), [1], "masked"),
        ("local", dict(sliding_window=1), [70], "masked packed"),
        ("local", dict(sliding_window=64, causal=True), [130], "masked"),
        ("local", dict(sliding_window=65), [130], "masked"),
        ("local", dict(sliding_window=300), [70], "packed"),
        ("local", dict(sliding_window=30), [200], "masked blocks"),
        ("local", dict(sliding_window=30, causal=True), [200], "blocks"),
        ("elu", "causal forget_gate", [11], "masked packed"),
        ("elu", "qk_norm", [11], "masked"),
        ("features", "causal forget_gate", [11], "masked"),
        ("features", "forget_gate", [11], "masked packed"),
        ("features", "causal rotary", [11], "masked placed"),
        ("features", "grid", [11], "masked packed"),
        ("favor+", "causal qk_norm", [11], "masked packed"),
        ("favor+", "", [11], "masked"),
        ("relu", "causal", [11], "masked packed"),
        ("relu", "", [11], "masked packed"),
        ("square", "causal forget_gate", [11], ""),
        ("no projection", "", [11], "masked"),
        ("taylor", "causal qk_norm", [11], "masked packed"),
        ("window", "causal forget_gate", [11], "masked packed"),
        ("window", "forget_gate", [11], "masked"),
        ("window", "rotary qk_norm", [11], "masked placed"),
        ("taylor, window", "causal grid", [11], "masked packed"),
        ("exact", "", [5, 11], "masked"),
        ("elu", "", [5, 11], "masked"),
        ("features", "", [5, 11], "masked"),
        ("relu", "", [5, 11, 11], "masked"),
        ("exact", "", [5, 11, 11], "masked"),
        ("longformer", dict(sliding_window=2), [1], "masked global"),
        ("longformer", dict(sliding_window=1, causal=True), [2], "masked global"),
        ("longformer", dict(causal=True), [13], "masked global"),
        ("longformer", dict(sliding_window=40), [17], "masked global"),
        ("longformer", {}, [13], "masked"),  # the first visible tokens are global
        ("longformer", dict(causal=True), [13], "global"),
        ("longformer", dict(num_global_tokens=0), [13], "masked"),
        # local attention takes 64 tokens at a time
        ("longformer", dict(sliding_window=30), [100], "masked global"),
        ("longformer", dict(sliding_window=30, causal=True), [100], "masked global"),
        ("big_bird", {}, [1], "masked"),
        ("big_bird", dict(causal=True), [5], "masked"),
        ("big_bird", dict(block_size=3), [23], "masked"),
        ("big_bird", dict(num_random_blocks=3, causal=True), [21], "masked"),
        ("big_bird", dict(num_global_blocks=0, block_size=1), [13], ""),
        ("big_bird", dict(num_global_blocks=3, num_random_blocks=0), [21], "masked"),
        ("linformer", dict(sharing="none"), [7], "masked"),
        ("linformer", dict(num_key_value_heads=4), [1], ""),
        ("linformer", dict(sharing="key-value"), [11], "masked"),
        ("linformer", {}, [13, 7], ""),
        ("synthesizer", {}, [7], "masked causal"),
        ("synthesizer", {}, [3, 11], "masked"),
        ("synthesizer", dict(kind="random"), [7], "masked causal"),
        ("synthesizer", dict(kind="random"), [7, 1], ""),
        ("synthesizer", dict(kind="factorized_random"), [7], "masked causal"),
        ("synthesizer", dict(kind="factorized_random"), [1, 7], ""),
        ("reformer", {}, [1], "masked"),
        ("reformer", dict(rotary=True), [17], "masked"),
        ("reformer", dict(causal=True), [19], "masked packed"),
        ("reformer", dict(rotary=True, causal=True), [70], ""),
        ("reformer", dict(sliding_window=2**30), [17], ""),
        ("reformer", dict(sliding_window=9), [60], "masked packed blocks"),
        ("reformer", dict(sliding_window=9, causal=True), [60], "blocks"),
        ("sinkhorn", {}, [1], ""),
        ("sinkhorn", dict(causal=True), [7], ""),
        ("sinkhorn", dict(num_iterations=1), [12], ""),
        ("sinkhorn", dict(num_iterations=0), [13], ""),
        ("sinkhorn", dict(num_iterations=1, causal=True), [13], "masked"),
        ("sinkhorn", {}, [13], "masked"),
        ("fourier", {}, [1], ""),
        ("fourier", {}, [7], "masked"),
        ("fourier", dict(norm="ortho"), [8], ""),
        ("token_mixing", {}, [1], ""),
        ("token_mixing", {}, [7], "masked"),
        ("token_mixing", {}, [13], ""),
        ("spatial_gating", {}, [1], ""),
        ("spatial_gating", {}, [13], "masked"),
        ("spatial_gating", dict(causal=True), [7], "masked"),
    ],
)
def test_it_is_its_definition_with_all_gradients(
    kind, options, lengths, words, monkeypatch
):
    if "blocks" in words:  # several blocks, which add to each other's gradients
        monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(weights=2**12))
    if isinstance(options, str):
        options = dict.fromkeys(options.split(), True)
        if options.pop("grid", False):
            options["rotary"] = GRID
    widths = (5, 6, 7)[: len(lengths)]
    layer = made(kind, *widths, **options)
    twin = getattr(zoo_twins, kind, twins.attention)(layer)
    inputs = [normal((2, *size), size[0]) for size in zip(lengths, widths)]
    call = arguments(kind, words, lengths[-1])
    tolerance = 1e-9
    if kind in ("token_mixing", "spatial_gating"):
        tolerance = 1e-7  # TensorFlow's gelu has the root of two to 8 digits
    elif "window" in kind or "qk_norm" in options:
        tolerance = 1e-6  # the gain of far keys and the scale of logits are float32
    scores = kind not in {*MIXERS, "linformer", "synthesizer", "reformer"}
    assert_is_twin(layer, twin, inputs, tolerance, scores=scores, **call)


def test_xla_uses_the_first_of_too_many_global_tokens_for_scores_too():
    """XLA leaves out the check of their number."""
    layer, x = made("longformer", dtype="float32"), normal((2, 13, 5), 1)
    marked = np.arange(13) % 2 == [[0], [1]]
    used = marked & (np.cumsum(marked, 1) <= layer.num_global_tokens)
    assert marked.sum() > used.sum() + 1
    compiled = tf.function(layer, jit_compile=True)
    found = compiled(x, global_mask=marked, return_attention_scores=True)
    for output, scores in zip(found, (False, True)):
        twin = zoo_twins.longformer(layer)
        expected = twin(weights_of(layer), x, global_mask=used, scores=scores)
        assert relative_error(output, expected) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 3e-6), ("mixed_bfloat16", 2e-2), ("mixed_float16", 4e-3)],
)
def test_far_positions_are_as_right_as_near_ones(dtype, tolerance):
    """Tests positions of 10^6 and more, spread so that all frequencies matter."""
    layer, x = made("exact", rotary=True, dtype=dtype), normal((2, 11, 5), 1)
    steps = np.random.default_rng(0).integers(1, 10**7, (2, 11))
    for positions in (10**6 + np.arange(11)[None], 10**6 + np.cumsum(steps, 1)):
        expected = twins.attention(layer)(weights_of(layer), x, positions=positions)
        assert relative_error(layer(x, positions=positions), expected) < tolerance


def test_features_far_below_rounding_count():
    """1 + elu(x) is 0 in float32 from x = -17 on."""
    layer, x = made("elu", dtype="float32"), normal((2, 11, 5), 1)
    bias = layer.key_dense.bias
    bias.assign(tf.fill(bias.shape, -22.0))
    expected = twins.attention(layer)(weights_of(layer), x)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


@keras.saving.register_keras_serializable("tests")
class Sums(layers.AttentionLayer):
    """A user's attention in two passes, with an `exact_window` of its own."""

    projections = ("value",)
    supports_state = True
    chunk_size, exact_window = 4, 3

    def attend(self, query, key, value, visible, state=None, training=None):
        total = tf.reduce_sum(value, 1, keepdims=True)
        return tf.repeat(total, tf.shape(value)[1], 1), None

    def empty_state(self, batch_size):
        return tf.zeros((batch_size, 1, self.num_heads, self.value_dim))

    def absorb(self, x, mask, state, positions=None):
        return state + tf.reduce_sum(self.project("value", x), 1, keepdims=True)

    def answer(self, x, mask, state, training=None, positions=None):
        return self.write(tf.repeat(state, tf.shape(x)[1], 1), mask, training)


@pytest.mark.parametrize(
    "attention", [LinearTransformerAttention(2, 4, chunk_size=4), Sums(2, 4)]
)
def test_bidirectional_attention_in_two_passes(attention):
    """Tests attention that a model recomputes, in two passes over pieces."""
    options = dict(attention=attention, causal=False)
    results = loss_and_gradients(small_model(recompute="block", **options))
    expected = loss_and_gradients(small_model(**options))
    for result, wanted in zip(*map(tf.nest.flatten, (results, expected)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)


# -- First weights.


@pytest.mark.parametrize(
    ("kind", "options", "name", "shape", "gain"),
    [
        ("linformer", dict(sharing="none"), "key_projection", (5, 200, 150), 0.5),
        ("linformer", {}, "key_projection", (200, 150), 0.5),
        ("synthesizer", {}, "place_kernel", (5, 150, 200), 1),
        ("synthesizer", dict(kind="random"), "alignment", (5, 200, 200), 1),
        ("synthesizer", dict(kind="factorized_random"), "key_factor", (5, 200, 8), 1),
    ],
)
def test_weights_are_glorot_uniform_in_each_head(kind, options, name, shape, gain):
    options = dict(num_heads=5, key_dim=150, max_length=200, **options)
    if kind == "linformer":
        options["projection_dim"] = 150
    layer = KINDS[kind][0](**options)
    layer.build((1, None, 4))
    drawn, limit = np.asarray(getattr(layer, name)), np.sqrt(6 * gain / sum(shape[-2:]))
    assert drawn.shape == shape
    assert 0.99 * limit < drawn.max() <= limit and -limit <= drawn.min()
    assert drawn.std() == pytest.approx(limit / np.sqrt(3), rel=0.03)
    if kind == "linformer":
        both = np.ravel(drawn), np.ravel(layer.value_projection)
        assert abs(np.corrcoef(*both)[0, 1]) < 0.05


def test_gating_is_at_first_a_network_for_each_token_by_itself():
    layer = zoo.SpatialGatingUnit(50, 6, dtype="float64")
    x = normal((2, 50, 5))
    layer.build(x.shape)
    alone = layer.contract(layer.expand(x)[..., :3])
    difference = np.abs(layer(x) - alone).max()
    assert 0 < difference < 1e-3 * np.abs(alone).max()
    kernel = layer.spatial_kernel.numpy()
    assert 0 < np.abs(kernel).max() <= 1e-3 / 50
    np.testing.assert_array_equal(layer.spatial_bias, np.ones(50))


# -- Sums of half precision are in float32.


def of_gating(dtype):
    """Makes a sum that rises to 75,000, beyond float16's range, and falls to 2."""
    layer = made("spatial_gating", 1, max_length=1000, intermediate_dim=2, dtype=dtype)
    kernel = np.full((1000, 1000), 150.0, "float32")
    kernel[:, 500:] = -150.0
    kernel[:, 0] = 152.0
    values = {
        "expand/bias": 10.0,  # sets both halves, as kernels are 0
        "norm/beta": 1.0,
        "contract/kernel": 1.0,
        "spatial_kernel": kernel,
    }
    for weight in layer.weights:
        value = values.get(weight.path.split("/", 1)[1], 0.0)
        weight.assign(np.broadcast_to(value, weight.shape))
    return layer, np.ones((1, 1000, 1)), 20.0


def of_tokens(dtype):
    """Makes sums that rise to 75,000 on the way; the result is gelu(3)."""
    layer = made("token_mixing", 1, max_length=5000, intermediate_dim=1, dtype=dtype)
    kernel = np.where(np.arange(5000) < 2500, 1, -1)[:, np.newaxis]
    layer.set_weights([kernel, np.zeros(1), np.ones((1, 5000)), np.zeros(5000)])
    x = np.full((1, 5000, 1), 30.0)
    x[0, 0] = 33.0
    return layer, x, 2.996


def of_fourier(dtype):
    """Makes a sum that rises to 34,816, whose spacing exceeds 3, and falls to 3."""
    x = np.ones((1, 4096, 17))
    x[:, 2048:] = -1.0
    x[0, 0, 0] = 4.0
    return made("fourier", 17, dtype=dtype), x, 3.0


def of_linformer(dtype):
    """Makes mixtures whose weights half precision would round to 1 and -1, so to 0."""
    sizes = dict(num_heads=1, key_dim=2, value_dim=2, num_key_value_heads=1)
    sizes |= dict(max_length=4096, projection_dim=3, use_bias=False)
    layer = made("linformer", 2, dtype=dtype, **sizes)
    for weight in layer.trainable_weights:
        weight.assign(tf.ones_like(weight))
    places = np.where(np.arange(4096) % 2, -1, 1 + 2**-11)
    layer.value_projection.assign(np.repeat(places[:, None], 3, 1))
    # values are 2, their mixtures 2 * 2048 / 2048, and the output adds two mixtures
    return layer, np.ones((1, 4096, 2)), 4.0


def of_sinkhorn(dtype):
    """Makes sums of 200 keys of 1,000, which exceed float16's range."""
    sizes = dict(num_heads=1, num_key_value_heads=1, block_size=200, max_length=600)
    layer = made("sinkhorn", 1, dtype=dtype, **sizes)
    for weight in layer.trainable_weights:
        name = weight.path.split("/", 1)[1]
        value = {"query/kernel": 0.0, "sort_kernel": weight * 1e-5}
        weight.assign(tf.broadcast_to(value.get(name, weight), weight.shape))
    x = np.repeat([[1000.0, -1000.0, 500.0]], 200, axis=1)[..., np.newaxis]
    right = made("sinkhorn", 1, **sizes)
    right.set_weights(layer.get_weights())
    return layer, x, right(x)[0, 0, 0]


MAKERS = [of_gating, of_tokens, of_fourier, of_linformer, of_sinkhorn]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_adds_up_in_float32(make, dtype):
    layer, x, expected = make(f"mixed_{dtype}")
    y = layer(x.astype("float32"))
    assert y.dtype == dtype
    np.testing.assert_allclose(tf.cast(y[0, 0, 0], "float32"), expected, rtol=1e-2)


# -- Longformer: dense layers of global tokens start as copies.


GLOBAL = dict(sliding_window=2, num_global_tokens=2, bias_initializer=BIAS)


class Halfway(keras.Model):
    """Model that makes its weights in its call, where reading casts them."""

    def __init__(self):
        super().__init__(dtype="mixed_bfloat16")
        options = dict(dtype=self.dtype_policy, **GLOBAL)
        self.attention = zoo.LongformerAttention(2, 3, **options)

    def build(self, input_shape):
        pass

    def call(self, x):
        return self.attention(x)


def of_a_subclass():
    model = Halfway()
    model(normal((2, 5, 7)))
    return model.attention


def of_a_model_that_xla_compiles():
    """Returns a layer whose weights Keras makes inside the compiled function."""
    layer = zoo.LongformerAttention(2, 3, **GLOBAL)
    model = keras.Sequential([layer])
    model.compile(jit_compile=True)
    model.predict(normal((2, 5, 7)), verbose=0)
    return layer


def of_a_clone():
    inputs = keras.Input((None, 7))
    model = keras.Model(inputs, zoo.LongformerAttention(2, 3, **GLOBAL)(inputs))
    randomize(model)
    return keras.models.clone_model(model).layers[-1]


@pytest.mark.parametrize(
    "make", [of_a_subclass, of_a_model_that_xla_compiles, of_a_clone]
)
def test_dense_layers_of_global_tokens_start_as_copies(make):
    layer = make()
    for name in ("query", "key", "value"):
        local = getattr(layer, f"{name}_dense")
        of_global = getattr(layer, f"_{name}_global_dense")
        for one, other in zip(local.weights, of_global.weights, strict=True):
            np.testing.assert_array_equal(one, other)
            assert np.std(one) > 0.1
            one.assign_add(tf.ones_like(one))
            assert not np.array_equal(one, other)


# -- Random numbers of layers.


def tables(layer):
    return layer.seen_blocks(60, False).table.numpy()


RANDOM = {
    "features": lambda layer: layer.projection_matrix,
    "big_bird": tables,
    "reformer": lambda layer: layer.rotations,
}


@pytest.mark.parametrize("kind", RANDOM)
def test_layers_without_a_seed_differ_unless_keras_is_seeded(kind):
    drawn = []
    for seed in (1, None, 1):
        if seed is not None:
            keras.utils.set_random_seed(seed)
        drawn.append(RANDOM[kind](made(kind, seed=None)))
    np.testing.assert_array_equal(drawn[2], drawn[0])
    assert not np.array_equal(drawn[1], drawn[0])


def test_random_blocks_are_the_layers_own_and_stay():
    one, other = (made("big_bird", seed=None) for _ in range(2))
    x = normal((2, 60, 5), 1)
    np.testing.assert_array_equal(one(x, training=True), one(x))
    other.set_weights(one.get_weights())
    np.testing.assert_array_equal(other(x), one(x))
    # files keep only the seed
    table = zoo.big_bird_blocks(12, 1, 2, 1, seed=5).table[0, :, -1]
    np.testing.assert_array_equal(table, [10, 6, 10, 5, 6, 7, 3, 5, 1, 7, 7, 5])
    # the blocks of a model also have different tables
    attention = zoo.BigBirdAttention(2, 4, causal=True, block_size=2)
    lm = language_model(11, 60, 2, 2, 8, attention=attention, seed=3)
    lm(np.zeros((1, 60), "int32"))
    one, other = (tables(block.attention) for block in lm.blocks)
    assert not np.array_equal(one, other)


# -- Linformer and Synthesizer: the longest sequence.


def test_xla_refuses_longer_sequences_by_the_name_of_the_layer():
    layer, x = made("linformer"), normal((3, 12, 5), 1, dtype="float64")
    spec = [tf.TensorSpec((None, None, 5), "float64")]
    compiled = tf.function(layer.__call__, input_signature=spec, jit_compile=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="LinformerAttention_with_a"
    ):
        compiled(x)
    np.testing.assert_allclose(compiled(x[:, :7]), layer(x[:, :7]), rtol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "random", "factorized_random"])
def test_only_a_dense_synthesizer_has_weights_for_longer_queries(kind):
    layer = zoo.SynthesizerAttention(2, 3, max_length=11, kind=kind)
    query, x = normal((2, 12, 5), 1), normal((2, 7, 5), 1)
    if kind == "dense":  # its weights do not depend on the query's position
        assert layer(query, x).shape == (2, 12, 5)
    else:
        with pytest.raises(ValueError, match="longer than max_length=11, of 12 tokens"):
            layer(query, x)


# -- Reformer: rotations.


def test_rotations_are_those_of_the_seed():
    first, again, other = (made("reformer", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rotations, again.rotations)
    assert np.abs(first.rotations - other.rotations).max() > 0.1
    large = made("reformer", num_hashes=50, num_buckets=100).rotations.numpy()
    assert large.shape == (50, 4, 12, 50) and large.dtype == "float32"
    assert abs(large.mean()) < 4.5 * large.size**-0.5
    assert abs(large.var() - 1) < 4.5 * (2 / large.size) ** 0.5


def test_keys_of_a_reformer_are_its_queries():
    layer, x = made("reformer"), normal((2, 5, 5), 1)
    np.testing.assert_array_equal(layer(x, x, key=x), layer(x))
    with pytest.raises(ValueError, match="uses queries as keys, so it has no cross"):
        layer(keras.Input((None, 5)), keras.Input((None, 5)))


# -- Sinkhorn: its permutations, and noise.


def test_iterations_depend_on_causality_by_default():
    x, layer = normal((2, 13, 5)), made("sinkhorn", num_iterations=None)
    for causal, given in ((False, 7), (True, 0)):
        expected = made("sinkhorn", num_iterations=given)(x, use_causal_mask=causal)
        found = layer(x, use_causal_mask=causal)
        np.testing.assert_array_equal(found, expected)


def test_noise_is_for_training_and_repeats_with_its_seed():
    x = normal((2, 13, 5))
    layer, again = (made("sinkhorn", noise=1.0) for _ in range(2))
    plain = made("sinkhorn")(x)
    for training in (None, False):
        np.testing.assert_array_equal(layer(x, training=training), plain)
    first, second = (layer(x, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    for expected in (first, second):
        np.testing.assert_array_equal(again(x, training=True), expected)
    np.testing.assert_array_equal(made("sinkhorn")(x, training=True), plain)


def test_noise_is_a_gumbel_variable():
    layer = made("sinkhorn", noise=2.0, max_length=6, temperature=1.0)
    key = tf.zeros((4000, 6, 2, 12), "float64")
    cut = blocks.Blocks(6, layer.block_size, multiple=layer.block_size)
    seen = tf.ones((4000, 2, 3), tf.bool)
    noise = layer._logits(key, cut, seen, causal=False, training=True).numpy() / 2
    assert noise.shape == (4000, 2, 2, 2)
    standard_error = np.pi / np.sqrt(6) / np.sqrt(noise.size)
    assert abs(noise.mean() - np.euler_gamma) < 4 * standard_error
    np.testing.assert_allclose(noise.std(), np.pi / np.sqrt(6), rtol=0.05)
