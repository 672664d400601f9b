"""`ReformerAttention` against its definition in NumPy, and what it promises."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.zoo import ReformerAttention
from tests.layers.inputs import normal
from tests.ops import lsh_reference


def small(shape=(None, None, 8), **options):
    defaults = dict(num_hashes=2, num_buckets=4, sliding_window=3, value_dim=5, seed=1)
    bias = keras.initializers.RandomNormal(stddev=0.5, seed=6)
    layer = ReformerAttention(
        2, 4, bias_initializer=bias, **{**defaults, "dtype": "float64", **options}
    )
    layer.build(shape)
    return layer


def project(dense, x):
    kernel, bias = (np.asarray(w, "float64") for w in dense.get_weights())
    return np.einsum("btd,dnh->btnh", x, kernel) + bias


def expected(layer, x, **options):
    """The output, from the weights of the layer."""
    query = project(layer.query_dense, x)
    if layer.rotary:  # before hashing
        query = ops.rotary_embedding(query, [np.arange(x.shape[1])]).numpy()
    buckets = lsh_reference.buckets(query, layer.rotations.numpy().astype("float64"))
    attended = lsh_reference.attention(
        query,
        project(layer.value_dense, x),
        buckets,
        layer.sliding_window,
        causal=layer.causal,
        **options,
    )
    kernel, bias = layer.output_dense.get_weights()
    return np.einsum("btnv,nvd->btd", attended, kernel) + bias


def hidden(length):
    seen = np.random.default_rng(0).random((2, length)) < 0.7
    seen[1, length // 2 :] = False
    return seen


@pytest.mark.parametrize(
    "length, rotary, causal",
    [(1, None, False), (17, True, False), (17, None, True), (70, True, True)],
)
def test_it_is_the_definition(length, rotary, causal):
    layer, x = small(causal=causal, rotary=rotary), normal((2, length, 8), 1)
    if length == 70:
        np.testing.assert_allclose(layer(x), expected(layer, x), atol=1e-10)
    seen = hidden(length)
    np.testing.assert_allclose(
        layer(x, key_mask=seen), expected(layer, x, seen=seen), atol=1e-10
    )


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_differences(causal):
    """Along one direction of the inputs and all weights."""
    layer = small(causal=causal, rotary=True)
    x = tf.Variable(normal((2, 19, 8), 1, dtype="float64"))
    upstream = normal((2, 19, 8), 3, dtype="float64")
    variables = [x, *(weight.value for weight in layer.trainable_weights)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x) * upstream)
    gradients = tape.gradient(loss, variables)
    # of like size, so that none is lost in the sum
    steps = [
        normal(g.shape, i, 1 / np.linalg.norm(g), "float64")
        for i, g in enumerate(gradients)
    ]
    losses = []
    for factor in (1e-6, -2e-6):
        for variable, step in zip(variables, steps):
            variable.assign_add(factor * step)
        losses.append(float(tf.reduce_sum(layer(x) * upstream)))
    slope = sum(np.sum(g * step) for g, step in zip(gradients, steps, strict=True))
    assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(slope, rel=1e-5)


def test_segments_are_sequences():
    layer, x = small(causal=True), normal((1, 20, 8), 1)
    whole = layer(x, segment_ids=[[0] * 8 + [1] * 12])
    parts = [layer(part) for part in (x[:, :8], x[:, 8:])]
    np.testing.assert_allclose(whole, tf.concat(parts, 1), atol=1e-10)


def test_rotations_are_those_of_the_seed():
    first, again, other = small(), small(), small(seed=2)
    np.testing.assert_array_equal(first.rotations, again.rotations)
    assert np.abs(first.rotations - other.rotations).max() > 0.1
    large = small(num_hashes=50, num_buckets=100).rotations.numpy()
    assert large.shape == (50, 2, 4, 50) and large.dtype == "float32"
    assert abs(large.mean()) < 4.5 * large.size**-0.5
    assert abs(large.var() - 1) < 4.5 * (2 / large.size) ** 0.5
    keras.utils.set_random_seed(3)
    without_seed = small(seed=None)
    keras.utils.set_random_seed(3)
    np.testing.assert_array_equal(without_seed.rotations, small(seed=None).rotations)


def test_a_recomputed_gradient_is_the_same():
    layer, x = small(), tf.constant(normal((2, 30, 8), 1, dtype="float64"))
    gradients = []
    for function in layer, tf.recompute_grad(lambda x: layer(x)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) ** 2)
        gradients.append(tape.gradient(loss, x))
    np.testing.assert_array_equal(*gradients)


def test_unknown_shapes():
    layer, x = small(causal=True, dtype="float32"), normal((2, 30, 8), 1)
    specs = [tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), tf.bool)]
    unknown = tf.function(lambda x, m: layer(x, key_mask=m), input_signature=specs)
    for length in (30, 1):
        part, seen = x[:, :length], hidden(30)[:, :length]
        right = layer(part, key_mask=seen)
        np.testing.assert_allclose(unknown(part, seen), right, atol=1e-6)


def test_other_keys_are_refused():
    layer, x = small(), normal((2, 5, 8), 1)
    y = layer(x)
    np.testing.assert_array_equal(layer(x, x, key=x), y)
    for call in dict(value=x.copy()), dict(value=x, key=x + 1):
        name = list(call)[-1]
        with pytest.raises(ValueError, match=f"{name} other than the query"):
            layer(x, **call)
    inputs = keras.Input((None, 8))
    with pytest.raises(ValueError, match="whose queries are its keys"):
        layer(inputs, keras.Input((None, 8)))
    with pytest.raises(ValueError, match="has no state"):
        layer(x, return_state=True)
