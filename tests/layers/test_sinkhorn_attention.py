"""`SinkhornAttention` beside its equations in NumPy, block by block."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.zoo import SinkhornAttention
from keras_performer.zoo.sinkhorn import balanced
from tests.layers.inputs import normal
from tests.layers.twins import (
    assert_is_twin,
    heads,
    randomize,
    softmax,
    weights_of,
    written,
)


def made(dtype="float64", width=5, **options):
    options = {
        **dict(num_heads=4, key_dim=3, value_dim=2, num_key_value_heads=2),
        **dict(block_size=3, max_length=13, num_iterations=4, seed=1, dtype=dtype),
        **options,
    }
    layer = SinkhornAttention(**options)
    layer.build((None, None, width))
    randomize(layer)
    return layer


def log_sum(x):
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x).sum()) if len(x) else -np.inf


def permutation(logits, num_iterations, some, causal):
    """P of one head, `(n, n)`: entry by entry, by turns of rows and columns."""
    n = len(logits)
    log_p = np.full((n, n), -np.inf)
    for i, j in np.ndindex(n, n):
        if some[j] and (j < i or not causal):
            log_p[i, j] = logits[i, j]

    def less_rows(log_p):
        totals = np.array([log_sum(row) for row in log_p])[:, None]
        return log_p - np.where(np.isinf(totals), 0, totals)

    for _ in range(num_iterations):
        log_p = less_rows(log_p)
        after = log_p.copy()
        for i, j in np.argwhere(~np.isinf(log_p)):
            if causal:
                after[i, j] -= log_sum(log_p[: i + 1, j])
            elif some[i]:
                after[i, j] -= log_sum(log_p[some, j])
        log_p = after
    return np.exp(less_rows(log_p))


def weights_in_full(layer, weights, q, k, seen):
    """`(N, T, T)`, of the queries `(T, N, H)` and keys `(T, K, H)` of one sequence."""
    size, length, causal = layer.block_size, len(q), layer.causal
    n = -(-length // size)
    blocks = [range(i * size, min((i + 1) * size, length)) for i in range(n)]
    some = np.array([any(seen[t] for t in block) for block in blocks])
    full = np.zeros((q.shape[1], length, length))
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        logits = np.zeros((n, n))
        for i in range(n):
            counted = range(i * size + 1) if causal else blocks[i]
            total = sum((k[t, group] for t in counted if seen[t]), np.zeros(k.shape[2]))
            logits[i] = total @ weights["sort_kernel"][group, :, :n]
        logits /= layer.temperature
        p = permutation(logits, layer.num_iterations, some, causal)
        for t in range(length):
            i = t // size
            # the keys that are seen: each a mean over places, and how it counts
            own = [np.eye(length)[s] for s in blocks[i] if seen[s]]
            if causal:
                own = [mean for mean in own if mean.argmax() <= t]
            means, counts = own, [1.0] * len(own)
            for place in range(size):
                share = np.zeros(length)
                for j in range(n):
                    s = j * size + place
                    if s < length and seen[s]:
                        share[s] = p[i, j]
                if share.sum() > 0:
                    means = [*means, share / share.sum()]
                    counts = [*counts, share.sum()]
            if means:
                means = np.array(means)
                dots = means @ k[:, group] @ q[t, head] / np.sqrt(q.shape[2])
                full[head, t] = softmax(dots + np.log(counts)) @ means
    return full


def twin_of(layer):
    def twin(weights, x, key_mask=None):
        q, k, v = (heads(weights, name, x) for name in ("query", "key", "value"))
        seen = np.ones(x.shape[:2], bool) if key_mask is None else key_mask
        full = [weights_in_full(layer, weights, *row) for row in zip(q, k, seen)]
        v = np.repeat(v, q.shape[2] // v.shape[2], axis=2)
        return written(weights, np.einsum("bnts,bsnv->btnv", full, v))

    return twin


CAUSAL = pytest.mark.parametrize("causal", [False, True])


def some_mask(length):
    """A row with its end hidden, one with holes and its beginning, one of hidden
    blocks, and nothing."""
    mask = np.random.default_rng(length).random((4, length)) < 0.6
    mask[0] = np.arange(length) < length - 4
    mask[1, :4] = False
    mask[2] = (np.arange(length) // 3) % 2
    mask[3] = False
    return mask


@pytest.mark.parametrize(
    "length, num_iterations, causal",
    [(1, 4, False), (7, 4, True), (12, 1, False), (13, 0, False), (13, 1, True)],
)
def test_it_is_the_formula_and_so_are_its_gradients(length, num_iterations, causal):
    layer = made(causal=causal, num_iterations=num_iterations)
    assert_is_twin(layer, twin_of(layer), [normal((2, length, 5))])


def test_iterations_depend_on_causality_by_default():
    x, layer = normal((2, 13, 5)), made(num_iterations=None)
    for call, given in ((False, 7), (True, 0)):
        expected = made(num_iterations=given)(x, use_causal_mask=call)
        np.testing.assert_array_equal(layer(x, use_causal_mask=call), expected)


@CAUSAL
def test_masks(causal):
    layer, x, mask = made(causal=causal), normal((4, 13, 5)), some_mask(13)
    assert_is_twin(layer, twin_of(layer), [x], key_mask=mask)
    _, scores = layer(x, key_mask=mask, return_attention_scores=True)
    weights = weights_of(layer)
    q, k = (heads(weights, name, x) for name in ("query", "key"))
    expected = [weights_in_full(layer, weights, *row) for row in zip(q, k, mask)]
    np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_hard_logits_sort_keys_and_values():
    """Three blocks of two, that P turns round: each sees its own and one other."""
    layer = SinkhornAttention(
        1, 3, 1, block_size=2, max_length=6, temperature=0.01, dtype="float64"
    )
    layer.build((None, None, 3))
    x = np.repeat(np.eye(3), 2, axis=0)[np.newaxis]  # keys say which block they are of
    turned = np.roll(np.eye(3), 1, axis=1)  # block 0 gets 1, 1 gets 2, and 2 gets 0
    given = {
        "query/kernel": np.zeros((3, 1, 3)),  # all weights alike
        "key/kernel": np.eye(3)[:, np.newaxis],
        "value/kernel": np.array([1.0, 10.0, 100.0])[:, np.newaxis, np.newaxis],
        "attention_output/kernel": np.array([[[1.0, 0.0, 0.0]]]),
        "sort_kernel": turned[np.newaxis],
    }
    for weight in layer.trainable_weights:
        name = weight.path.split("/", 1)[1]
        weight.assign(given.get(name, np.zeros(weight.shape)))
    seen = layer(x)[0, :, 0]
    np.testing.assert_allclose(seen, [5.5, 5.5, 55, 55, 50.5, 50.5])


def test_rows_and_columns_of_p_add_up_to_one():
    logits = normal((2, 3, 7, 7), dtype="float64")
    seen = np.arange(7) < [[7], [5]]
    p = np.exp(balanced(logits, 50, tf.constant(seen)))
    for row, n in enumerate((7, 5)):
        np.testing.assert_allclose(p[row, :, :n, :n].sum(-1), 1)
        np.testing.assert_allclose(p[row, :, :n, :n].sum(-2), 1)
        assert not p[row, ..., n:].any()
        # of a block without keys a softmax
        hidden = p[row, :, n:, :n].sum(-1)
        np.testing.assert_allclose(hidden, np.ones_like(hidden))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_huge_later_keys_do_not_move_the_past(dtype):
    """With noise; where blocks of three begin and end, and inside."""
    layer, x = made(dtype, causal=True, noise=1.0), normal((2, 13, 5))
    outputs = []
    for first in (13, 3, 5, 12):
        layer.noise_seed.state.assign([1, 2])
        later = np.where(np.arange(13)[:, np.newaxis] < first, x, 1e4 * x)
        output = tf.cast(layer(later, training=True), "float32")
        outputs.append(output)
        np.testing.assert_array_equal(output[:, :first], outputs[0][:, :first])


def test_noise_is_for_training_and_repeats_with_its_seed():
    x = normal((2, 13, 5))
    layer, plain = made(noise=1.0), made()
    np.testing.assert_array_equal(layer(x), plain(x))
    np.testing.assert_array_equal(layer(x, training=False), plain(x))
    first, second = layer(x, training=True), layer(x, training=True)
    assert np.abs(first - second).max() > 1e-3
    again = made(noise=1.0)
    np.testing.assert_array_equal(again(x, training=True), first)
    np.testing.assert_array_equal(again(x, training=True), second)
    np.testing.assert_array_equal(plain(x, training=True), plain(x))


def test_noise_is_a_gumbel_variable():
    """For logits of 0 the larger of two is either, and its lead is logistic."""
    layer = made(noise=2.0, max_length=6, temperature=1.0)
    key = tf.zeros((4000, 6, 2, 3), "float64")
    noise = layer._logits(key, ops.Visibility(), training=True).numpy() / 2
    assert noise.shape == (4000, 2, 2, 2)
    standard_error = np.pi / np.sqrt(6) / np.sqrt(noise.size)
    assert abs(noise.mean() - np.euler_gamma) < 4 * standard_error
    np.testing.assert_allclose(noise.std(), np.pi / np.sqrt(6), rtol=0.05)


def test_half_precision_adds_up_in_float32():
    """Sums of 200 keys of 1,000, that tell blocks apart: more than a float16 can be."""
    one_head = dict(width=1, num_heads=1, num_key_value_heads=1)
    layer, right = (
        made(dtype, block_size=200, max_length=600, **one_head)
        for dtype in ("mixed_float16", "float64")
    )
    for weight in right.trainable_weights:
        name = weight.path.split("/", 1)[1]
        value = {"query/kernel": 0.0, "sort_kernel": weight * 1e-5}
        weight.assign(tf.broadcast_to(value.get(name, weight), weight.shape))
    layer.set_weights(right.get_weights())
    x = np.repeat([[1000.0, -1000.0, 500.0]], 200, axis=1)[..., np.newaxis]
    found, expected = (tf.cast(each(x), "float64") for each in (layer, right))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 3e-3


def test_queries_and_keys_have_the_same_length():
    layer = made()
    with pytest.raises(ValueError, match="block_size needs one key for each query"):
        layer(normal((2, 5, 5)), normal((2, 6, 5)))
    spec = [tf.TensorSpec((None, None, 5))] * 2
    graph = tf.function(layer.__call__, input_signature=spec)
    assert graph(normal((2, 5, 5)), normal((2, 5, 5))).shape == (2, 5, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one key for each query"):
        graph(normal((2, 5, 5)), normal((2, 6, 5)))
