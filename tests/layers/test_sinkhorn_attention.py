"""`SinkhornAttention` beside its equations in NumPy, block by block."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, generate, ops
from keras_performer.layers import PerformerBlock
from keras_performer.zoo import SinkhornAttention
from keras_performer.zoo.sinkhorn import balanced
from tests.layers.costs import largest_tensor
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


@CAUSAL
@pytest.mark.parametrize("length", [1, 7, 12])
def test_it_is_the_formula_and_so_are_its_gradients(length, causal):
    layer = made(causal=causal)
    assert_is_twin(layer, twin_of(layer), [normal((2, length, 5))])


@CAUSAL
@pytest.mark.parametrize("num_iterations", [0, 1])
def test_few_iterations(num_iterations, causal):
    layer = made(causal=causal, num_iterations=num_iterations)
    assert_is_twin(layer, twin_of(layer), [normal((2, 13, 5))])


def test_iterations_depend_on_causality_by_default():
    x, layer = normal((2, 13, 5)), made(num_iterations=None)
    for call, given in ((False, 7), (True, 0)):
        expected = made(num_iterations=given)(x, use_causal_mask=call)
        np.testing.assert_array_equal(layer(x, use_causal_mask=call), expected)


def test_balancing_a_triangle_leads_to_the_block_before():
    """The reason of that default: logits of 10 for another block do not help."""
    logits = np.zeros((1, 1, 8, 8))
    logits[..., 7, 3] = 10
    seen, far = tf.ones((1, 8), "bool"), []
    for num_iterations in (0, 7, 200):
        p = np.exp(balanced(tf.constant(logits), num_iterations, seen, causal=True))
        far.append(p[0, 0, 7])
    assert far[0][3] > 0.99 and far[1][6] > 0.8 and far[2][6] > 0.99


@CAUSAL
def test_masks(causal):
    layer, x, mask = made(causal=causal), normal((4, 13, 5)), some_mask(13)
    assert_is_twin(layer, twin_of(layer), [x], key_mask=mask)
    # what queries see no key gives the bias
    hidden = layer(x, key_mask=mask)[3]
    bias = np.broadcast_to(layer.output_dense.bias, hidden.shape)
    np.testing.assert_array_equal(hidden, bias)


@CAUSAL
def test_scores_are_what_values_are_weighted_by(causal):
    layer, x, mask = made(causal=causal), normal((4, 11, 5)), some_mask(11)
    output, scores = layer(x, key_mask=mask, return_attention_scores=True)
    weights = weights_of(layer)
    q, k, v = (heads(weights, name, x) for name in ("query", "key", "value"))
    expected = [weights_in_full(layer, weights, *row) for row in zip(q, k, mask)]
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    np.testing.assert_allclose(scores[:3].numpy().sum(-1).max(-1), 1, atol=1e-12)
    v = np.repeat(v, 2, axis=2)
    attended = np.einsum("bnts,bsnv->btnv", scores, v)
    np.testing.assert_allclose(output, written(weights, attended), atol=1e-12)


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


@CAUSAL
def test_padding_to_the_right_is_none(causal):
    layer, x = made(causal=causal), normal((1, 13, 5))
    for length in (1, 3, 7, 11):
        mask = np.arange(13)[np.newaxis] < length
        padded = layer(np.where(mask[..., np.newaxis], x, 1e4), query_mask=mask)
        np.testing.assert_allclose(padded[:, :length], layer(x[:, :length]), atol=1e-10)


@CAUSAL
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_huge_hidden_keys_change_nothing(causal, dtype):
    layer = made(dtype, causal=causal)
    query, x, mask = normal((4, 13, 5)), normal((4, 13, 5), 1), some_mask(13)
    huge = np.where(mask[..., np.newaxis], x, 1e4)
    found, expected = (layer(query, y, key_mask=mask) for y in (huge, x))
    np.testing.assert_array_equal(*(tf.cast(y, "float32") for y in (found, expected)))


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_huge_later_keys_do_not_move_the_past(dtype, noise):
    layer, x = made(dtype, causal=True, noise=noise), normal((2, 13, 5))
    for first in range(1, 13):
        later = x.copy()
        later[:, first:] *= 1e4
        outputs = []
        for y in (x, later):
            if noise:
                layer.noise_seed.state.assign([1, 2])
            outputs.append(tf.cast(layer(y, training=True)[:, :first], "float32"))
        np.testing.assert_array_equal(*outputs)


@pytest.mark.slow
def test_nothing_later_in_compiled_functions():
    layer, x = made("float32", causal=True), normal((2, 13, 5))
    compiled = tf.function(layer.__call__, jit_compile=True)
    for first in (1, 4, 5, 12):
        later = tf.concat([x[:, :first], 1e4 * x[:, first:]], 1)
        np.testing.assert_array_equal(
            compiled(later)[:, :first], compiled(tf.constant(x))[:, :first]
        )


def test_a_shorter_sequence_is_the_beginning_of_a_longer_if_causal():
    layer, x = made(causal=True), normal((2, 13, 5))
    for length in range(1, 13):
        np.testing.assert_allclose(
            layer(x)[:, :length], layer(x[:, :length]), atol=1e-10
        )


def test_the_first_block_sees_itself_alone_if_causal():
    layer, x = made(causal=True, block_size=4), normal((2, 13, 5))
    _, scores = layer(x, return_attention_scores=True)
    scores = scores.numpy()
    assert not np.triu(scores, 1).any()
    np.testing.assert_allclose(scores[:, :, :4, :4].sum(-1), 1)
    assert (scores[:, :, 4:, :4] > 0).all()  # later ones see the first block


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
    """Where logits are 0 the larger of two is either, and its lead is logistic."""
    layer = made(noise=2.0, max_length=6, temperature=1.0)
    key = tf.zeros((4000, 6, 2, 3), "float64")
    noise = layer._logits(key, ops.Visibility(), training=True).numpy() / 2
    assert noise.shape == (4000, 2, 2, 2)
    standard_error = np.pi / np.sqrt(6) / np.sqrt(noise.size)
    assert abs(noise.mean() - np.euler_gamma) < 4 * standard_error
    np.testing.assert_allclose(noise.std(), np.pi / np.sqrt(6), rtol=0.05)


@pytest.mark.slow
@CAUSAL
def test_unknown_shapes_and_xla(causal):
    layer, right = made("float32", causal=causal), made(causal=causal)
    spec = [tf.TensorSpec((None, None, 5)), tf.TensorSpec((None, None), "bool")]

    def call(x, mask):
        return layer(x, key_mask=mask)

    graph = tf.function(call, input_signature=spec)
    xla = tf.function(call, jit_compile=True)
    for length, functions in ((7, (call, graph, xla)), (1, (graph,)), (13, (graph,))):
        x, mask = normal((4, length, 5)), some_mask(length)
        for function in functions:
            found = function(tf.constant(x), tf.constant(mask))
            np.testing.assert_allclose(found, right(x, key_mask=mask), atol=1e-4)


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


@CAUSAL
def test_it_is_as_large_as_it_says(causal):
    """P, and the logits of attention; nothing of L times L."""

    def size(length, block_size):
        layer = SinkhornAttention(
            1,
            2,
            block_size=block_size,
            max_length=length,
            num_iterations=1,
            causal=causal,
        )
        return largest_tensor(layer, (1, length, 4))

    # long sequences of small blocks: the squares of their number
    assert [size(n, 2) for n in (256, 1024)] == [128**2, 512**2]
    # of large blocks: what queries see
    assert [size(n, 64) for n in (256, 1024)] == [256 * 128, 1024 * 128]
    assert SinkhornAttention.cost == "L^2 / block_size + L block_size"


def test_queries_and_keys_have_the_same_length():
    layer = made()
    with pytest.raises(ValueError, match="block_size needs one key for each query"):
        layer(normal((2, 5, 5)), normal((2, 6, 5)))
    spec = [tf.TensorSpec((None, None, 5))] * 2
    graph = tf.function(layer.__call__, input_signature=spec)
    assert graph(normal((2, 5, 5)), normal((2, 5, 5))).shape == (2, 5, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one key for each query"):
        graph(normal((2, 5, 5)), normal((2, 6, 5)))


def test_longer_sequences_are_refused():
    layer = made()
    with pytest.raises(ValueError, match="longer than max_length=13, of 14 tokens"):
        layer(normal((2, 14, 5)))
    spec = [tf.TensorSpec((None, None, 5))]
    graph = tf.function(layer.__call__, input_signature=spec)
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than max_length"):
        graph(normal((2, 14, 5)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than max_length"):
        graph(normal((2, 40, 5)))
    xla = tf.function(layer.__call__, input_signature=spec, jit_compile=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="make_SinkhornAttention_w"
    ):
        xla(normal((2, 14, 5)))


@pytest.mark.parametrize(
    "message, options",
    [
        ("block_size must be a positive int", dict(block_size=0)),
        ("max_length must be a positive int", dict(max_length=2.5)),
        (
            r"num_iterations must be an int, 0 or more and below 2\*\*31 or None",
            dict(num_iterations=-1),
        ),
        ("temperature must be a positive float", dict(temperature=0.0)),
        ("temperature must be a positive float", dict(temperature=True)),
        ("noise must be 0 or a positive float", dict(noise=-1.0)),
        ("noise must be 0 or a positive float", dict(noise=float("nan"))),
    ],
)
def test_bad_arguments_raise(message, options):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_what_it_cannot_do_is_refused():
    layer, x = made(causal=True), normal((2, 5, 5))
    with pytest.raises(ValueError, match="cannot keep segments"):
        layer(x, segment_ids=np.zeros((2, 5), "int32"))
    with pytest.raises(ValueError, match="SinkhornAttention has no state"):
        layer(x, return_state=True)


@pytest.mark.slow
@CAUSAL
def test_blocks_and_language_models_train(causal):
    attention = SinkhornAttention(
        2, 4, block_size=3, max_length=16, causal=causal, noise=0.5, use_bias=False
    )
    block = PerformerBlock(attention, 11)
    model = keras.Sequential([keras.Input((None, 5)), block])
    x = normal((2, 13, 5))
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    losses = [model.train_on_batch(x, 0 * x) for _ in range(5)]
    assert losses[-1] < losses[0]
    lm = PerformerLM(
        11,
        max_length=16,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        attention=attention,
        causal=causal,
    )
    lm.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    ids = np.random.default_rng(0).integers(0, 11, (2, 13))
    before = [w.numpy() for w in lm.trainable_weights]
    assert np.isfinite(lm.train_on_batch(ids, ids))
    for weight, old in zip(lm.trainable_weights, before):
        assert np.abs(weight - old).max() > 1e-9, weight.path
    if causal:
        with pytest.raises(ValueError, match="needs an attention with a state"):
            generate(lm, ids[:, :3], 9)
