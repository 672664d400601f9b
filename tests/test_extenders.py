"""Attention and feature maps from outside the package keep the whole contract."""

import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, feature_maps, layers, ops
from keras_performer.ops import compile
from tests.cases import Case
from tests.contract import PROMISES, relative_error, tensors
from tests.layers import twins

# -- An attention in one file.


@keras.saving.register_keras_serializable("tests")
class FadingMean(layers.AttentionLayer):
    """Averages of earlier values, with weights that fade at a trained rate per head."""

    projections = ("value",)
    supports_state = True

    def __init__(self, num_heads, key_dim, half_life=8.0, **kwargs):
        super().__init__(num_heads, key_dim, **{"causal": True, **kwargs})
        self.half_life = half_life

    def build_attention(self):
        start = keras.initializers.Constant(math.log(2) / self.half_life)
        shape = (self.num_key_value_heads,)
        self.rate = self.add_weight(name="rate", shape=shape, initializer=start)

    def empty_state(self, batch_size):
        return tf.zeros((batch_size, self.num_key_value_heads, self.value_dim + 1))

    def attend(self, query, key, value, visible, state=None, training=None):
        v = tf.cast(tf.concat([value, tf.ones_like(value[..., :1])], -1), tf.float32)
        if visible.key_mask is not None:
            v *= tf.cast(visible.key_mask, v.dtype)[..., tf.newaxis, tf.newaxis]
        now = tf.range(tf.shape(v)[1])
        age = tf.cast(now[:, tf.newaxis] - now, v.dtype)
        rate = tf.cast(self.rate, v.dtype)[:, tf.newaxis, tf.newaxis]
        fade = tf.where(age < 0, 0.0, tf.exp(-rate * tf.maximum(age, 0.0)))
        sums = tf.einsum("kts,bskv->btkv", fade, v)
        if state is not None:
            before = tf.exp(-tf.cast(self.rate, v.dtype) * (age[:, :1] + 1.0))
            sums += before[..., tf.newaxis] * state[:, tf.newaxis]
        attended = tf.math.divide_no_nan(sums[..., :-1], sums[..., -1:])
        attended = tf.repeat(attended, self.num_heads // value.shape[2], axis=2)
        return tf.cast(attended, value.dtype), sums[:, -1]

    def get_config(self):
        return {**super().get_config(), "half_life": self.half_life}


# -- A feature map of several parameters, for a kernel of the package.


@keras.saving.register_keras_serializable("tests")
class WideSoftmaxFeatures(feature_maps.FeatureMap):
    """Features whose rows do not have variance 1, with log-weights that correct it."""

    estimates_softmax = True

    def __init__(self, variance=1.5):
        self.variance = variance

    def draw(self, num_features, head_dim, seed):
        rows = self.variance**0.5 * ops.gaussian_matrix(num_features, head_dim, seed)
        squares = tf.reduce_sum(rows**2, -1)
        log_weights = (1 / self.variance - 1) * squares / 2
        log_weights += head_dim / 2 * math.log(self.variance)
        return {"rows": rows, "log_weights": log_weights}

    def kernel(self, parameters):
        return ops.ExponentialKernel(
            parameters["rows"], log_weights=parameters["log_weights"]
        )

    def get_config(self):
        return {"variance": self.variance}


# -- A feature map that trains, with parameters of each head, and its kernel.


class SquareKernel(ops.Kernel):
    """Kernel with squares of projected queries and keys as features."""

    def query_features(self, a, r):
        return a**2, tf.zeros_like(a[..., :1])

    def key_features(self, b, r, mask):
        return b**2 if mask is None else tf.where(mask, b**2, 0.0)


@keras.saving.register_keras_serializable("tests")
class TrainedSquares(feature_maps.FeatureMap):
    trainable = True

    def draw_for_heads(self, num_heads, num_features, head_dim, seed):
        rows = ops.gaussian_matrix(num_heads * num_features, head_dim, seed)
        return tf.reshape(rows, (num_heads, num_features, head_dim))

    def kernel(self, parameters):
        return SquareKernel({"projection_matrix": parameters})


SMALL = dict(num_heads=4, key_dim=3, num_key_value_heads=2, seed=1)


def with_map(feature_map, **options):
    arguments = {**SMALL, "num_random_features": 9, "feature_map": feature_map}
    return functools.partial(Case, PerformerAttention, {**arguments, **options}, (7,))


CASES = {
    "attention": Case(FadingMean, {**SMALL, "half_life": 2.0}, (7,)),
    "feature_map": with_map(WideSoftmaxFeatures(1.3))(),
    "causal_feature_map": with_map(WideSoftmaxFeatures(1.3), causal=True)(),
    "trained_feature_map": with_map(TrainedSquares(), causal=True)(half_precision=4e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "feature_map", "trained_feature_map"])
def test_what_a_stranger_wrote_keeps_the_contract(name):
    for promise in PROMISES:
        promise(CASES[name])


def test_a_checkpoint_of_tensorflow_holds_all_parameters_of_a_map():
    """Keras itself leaves dicts out of a `tf.train.Checkpoint`."""
    case = CASES["feature_map"]
    (x,) = tensors(case.inputs())
    layer, other = (case.make(seed=seed) for seed in (1, 2))
    assert relative_error(other(x), layer(x)) > 1e-3
    path = tf.train.Checkpoint(layer=layer).save("checkpoint")
    tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert relative_error(other(x), layer(x)) == 0


# -- The same numbers in NumPy.


def fading_mean(layer, x, mask):
    """Computes `FadingMean` token by token."""
    given = twins.weights_of(layer)
    value, fade = twins.heads(given, "value", x), np.exp(-given["rate"])[:, None]
    sums, weight = np.zeros_like(value[:, 0]), np.zeros_like(value[:, 0, :, :1])
    attended = []
    for t in range(x.shape[1]):
        seen = mask[:, t, None, None]
        sums = sums * fade + value[:, t] * seen
        weight = weight * fade + seen
        attended.append(np.divide(sums, weight, where=weight > 0, out=0 * sums))
    return twins.written(given, np.repeat(np.stack(attended, 1), 2, axis=2))


def wide_softmax(layer, x, mask):
    return twins.attention(layer)(twins.weights_of(layer), x, key_mask=mask)


def trained_squares(layer, x, mask):
    """Computes causal attention by the whole matrix of each head."""
    given = twins.weights_of(layer)
    query, key, value = (twins.heads(given, n, x) for n in ("query", "key", "value"))
    attended = np.zeros((*query.shape[:3], 3))
    for n in range(4):
        rows = np.asarray(layer.projection_matrix, "float64")[n // 2] / 3**0.25
        phi_q, phi_k = (query[:, :, n] @ rows.T) ** 2, (key[:, :, n // 2] @ rows.T) ** 2
        weights = np.tril(np.einsum("btm,bsm->bts", phi_q, phi_k) * mask[:, None])
        total = weights.sum(-1, keepdims=True)
        weights = np.divide(weights, total, where=total > 0, out=0 * weights)
        attended[:, :, n] = np.einsum("bts,bsv->btv", weights, value[:, :, n // 2])
    return twins.written(given, attended)


EXPECTED = {
    "attention": fading_mean,
    "feature_map": wide_softmax,
    "causal_feature_map": wide_softmax,
    "trained_feature_map": trained_squares,
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_numpy_also_from_pieces(name):
    layer, (x,) = CASES[name].make(), CASES[name].inputs(length=11)
    mask = np.ones((2, 11), bool)
    mask[0, :3] = mask[1, 6:8] = False
    found = layer(tf.constant(x), value_mask=mask)
    expected = EXPECTED[name](layer, x, mask)
    assert relative_error(found, expected) < 2e-6
    if not layer.causal:
        return
    state, pieces = layer.get_initial_state(2), []
    for here in (slice(0, 4), slice(4, 5), slice(5, 11)):
        options = {"state": state, "return_state": True, "value_mask": mask[:, here]}
        piece, state = layer(tf.constant(x[:, here]), **options)
        pieces.append(piece)
    assert relative_error(tf.concat(pieces, 1), expected) < 3e-6
    assert state["position"].numpy().tolist() == [11, 11]


def test_features_that_train_are_not_drawn_anew():
    layer = CASES["trained_feature_map"].make()
    layer(np.zeros((1, 3, 7), "float32"))
    with pytest.raises(ValueError, match="do not train.*TrainedSquares"):
        layer.redraw_features()


class NamedShift(layers.MixingLayer):
    """A mixer with an argument of its own, one of Keras, and further ones."""

    def __init__(self, steps, dtype=None, *args, **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.steps = steps
        self.args, self.kwargs = args, kwargs  # not arguments of these names


def test_a_config_has_the_arguments_that_are_attributes():
    config = NamedShift(3, "mixed_bfloat16", name="shift").get_config()
    assert {"steps": 3, "causal": False, "name": "shift"}.items() <= config.items()
    assert not {"args", "kwargs"} & config.keys()
    again = NamedShift.from_config(config)
    assert again.dtype_policy.name == "mixed_bfloat16" and again.get_config() == config


@keras.saving.register_keras_serializable("tests")
class FreshFunction(feature_maps.FeatureMap):
    """Map that makes a new function for each kernel, and samples with NumPy."""

    def draw(self, num_features, head_dim, seed):
        random = np.random.default_rng(int(seed[0]) + int(seed[1]))
        return random.standard_normal((num_features, head_dim)).astype("float32")

    def kernel(self, parameters):
        return ops.ActivationKernel(parameters, lambda x: tf.nn.relu(x) + 1.0)


def test_calls_share_what_is_compiled_although_kernels_have_functions_of_their_own():
    layer = PerformerAttention(
        2, 3, num_random_features=4, feature_map=FreshFunction(), jit_compile=True
    )
    x = tf.ones((1, 5, 7))
    layer(x)
    functions = compile._functions[tf.compat.v1.get_default_graph()]
    number = len(functions)
    layer(x)
    assert len(functions) == number
    layer.redraw_features()  # redraws eagerly, so NumPy may sample
    expected = np.random.default_rng(layer._random_projection.first_seed.numpy() + 1)
    np.testing.assert_array_equal(
        layer.projection_matrix, expected.standard_normal((4, 3)).astype("float32")
    )
