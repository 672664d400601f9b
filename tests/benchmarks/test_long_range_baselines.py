"""What is counted is what the tasks hold."""

import numpy as np

from benchmarks.long_range import baselines


def test_counts_of_tokens_tell_classes_that_differ_in_them_only():
    def draw(random, batch_size):
        y = random.integers(2, size=(batch_size, 1)).astype(np.int32)
        odd = random.random((batch_size, 40)) < 0.3 + 0.4 * y
        return odd.astype(np.int32), y, np.ones_like(y, np.float32)

    held_out = [draw(np.random.default_rng(9), 500)]
    accuracy = baselines.histogram_accuracy(draw, held_out, 700, 2)
    # the share of classes that the likelier count of 40 tells, 20 being undecided
    assert abs(accuracy - 0.995) < 0.01
    # measured on what is held out: there each class is the other's
    swapped = [(x, 1 - y, w) for x, y, w in held_out]
    other = baselines.histogram_accuracy(draw, swapped, 700, 2)
    np.testing.assert_allclose(other, 1 - accuracy)


def test_order_is_not_seen():
    def draw(random, batch_size):
        y = random.integers(2, size=(batch_size, 1)).astype(np.int32)
        x = np.tile(np.arange(20, dtype=np.int32), (batch_size, 1))
        return np.where(y, x, x[:, ::-1]), y, np.ones_like(y, np.float32)

    held_out = [draw(np.random.default_rng(9), 400)]
    accuracy = baselines.histogram_accuracy(draw, held_out, 300, 20)
    assert abs(accuracy - 0.5) < 0.1


def test_histograms_by_hand():
    x = np.array([[0, 1, 1, 1], [2, 2, 2, 2]])
    labels, weights = np.array([[4]]), np.ones((1, 1))
    features, targets = baselines.histograms([(x, labels, weights)] * 2, 3, pairs=True)
    np.testing.assert_allclose(features, [[0.5, np.sqrt(0.75), 1]] * 2)
    assert targets.tolist() == [4, 4]
    alone, _ = baselines.histograms([(x, np.zeros((2, 1)), None)], 3)
    np.testing.assert_allclose(alone, [[0.5, np.sqrt(0.75), 0], [0, 0, 1]])


def test_the_first_token_by_hand():
    # after 3 mostly class 1, after 0 class 2; 5 was never seen
    x = np.array([[3, 0], [3, 1], [3, 2], [0, 3], [5, 3]])
    y = np.array([[1], [0], [1], [2], [1]])
    seen = x[:4], y[:4], None
    accuracy = baselines.first_token_accuracy(lambda *_: seen, [(x, y, None)], 4, 6)
    assert accuracy == 3 / 5


def test_as_many_examples_as_asked_for():
    sizes = []
    draw = lambda random, batch_size: sizes.append(batch_size)  # noqa: E731
    list(baselines.batches_of(draw, 150, seed=0))
    list(baselines.batches_of(draw, 64, seed=0))
    assert sizes == [64, 64, 22, 64]


def test_bits_after_the_token_before_by_hand():
    # counts from 1/2 on: after 0 come 0 and 1 as 0.5 : 2.5, after 1 as 1.5 : 0.5
    seen = np.array([[0, 1, 0, 0]]), np.array([[1, 0, 1, 0]]), np.array([[1, 1, 1, 0]])
    asked = np.array([[0, 0, 1]]), np.array([[1, 0, 1]]), np.array([[2, 1, 0]])
    bits = baselines.pair_bits(lambda *_: seen, [asked], 1, 2)
    np.testing.assert_allclose(bits, -(2 * np.log2(5 / 6) + np.log2(1 / 6)) / 3)
