"""Expressions are what they say, and their answers what they come to."""

import statistics

import numpy as np
import pytest

from benchmarks.long_range import listops

LENGTHS = 100, 500


@pytest.fixture(scope="module")
def batch():
    return listops.draw(*LENGTHS, np.random.default_rng(0), 2000)


def lists(text):
    """The nested lists of a text: an operator first, and arguments."""
    stack = [[]]
    for word in text.split():
        if word == "]":
            closed = stack.pop()
            stack[-1].append(closed)
        elif word.startswith("["):
            stack.append([word.removeprefix("[")])
        else:
            stack[-1].append(int(word))
    ((outermost,),) = stack
    return outermost


def worth(nested):
    """By what is written in the paper, not by the functions that draw."""
    if isinstance(nested, int):
        return nested
    operator, *arguments = nested
    values = [worth(argument) for argument in arguments]
    return {
        "MIN": lambda: sorted(values)[0],
        "MAX": lambda: sorted(values)[-1],
        "MED": lambda: int(statistics.median(values)),
        "SM": lambda: int(str(sum(values))[-1]),
    }[operator]()


def operations(nested, depth=1):
    """All lists with the depths at which they stand."""
    yield nested, depth
    for argument in nested[1:]:
        if isinstance(argument, list):
            yield from operations(argument, depth + 1)


def test_answers_are_what_the_texts_come_to(batch):
    for ids, (answer,) in zip(*batch[:2]):
        assert worth(lists(listops.spell(ids))) == answer
    assert (batch[2] == 1).all()


@pytest.mark.parametrize(
    "text, value",
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[SM 9 9 [MED 1 8 3 ] ]", 1),
        ("[MED 4 7 ]", 5),
        ("[MED 9 0 1 4 ]", 2),
        ("[MED [SM 5 5 ] 8 9 ]", 8),
    ],
)
def test_the_evaluator_of_this_file_on_paper(text, value):
    assert worth(lists(text)) == value


def test_lengths_count_what_is_read_and_padding_follows(batch):
    x = batch[0]
    lengths = [len(listops.spell(ids).split()) for ids in x]
    assert LENGTHS[0] <= min(lengths) < 105 and 490 < max(lengths) <= LENGTHS[1]
    for ids, length in zip(x, lengths):
        assert ids[:length].all() and not ids[length:].any()
    assert set(np.unique(x)) == set(range(listops.VOCABULARY_SIZE))


def test_each_length_asked_for_comes_up_and_no_other():
    x, _, _ = listops.draw(9, 12, np.random.default_rng(0), 200)
    assert set((x > 0).sum(axis=1)) == {9, 10, 11, 12}


@pytest.mark.parametrize("max_args, max_depth", [(10, 10), (3, 10), (10, 4), (2, 4)])
def test_arguments_and_depth_reach_their_bounds(max_args, max_depth):
    random = np.random.default_rng(0)
    x, _, _ = listops.draw(10, 200, random, 800, max_args, max_depth)
    found = [pair for ids in x for pair in operations(lists(listops.spell(ids)))]
    counts = {len(nested) - 1 for nested, _ in found}
    assert counts == set(range(2, max_args + 1))
    assert max(depth for _, depth in found) == max_depth - 1


def test_operators_digits_and_counts_are_drawn_evenly():
    # no longer one can be grown: none is thrown away
    x, _, _ = listops.draw(4, 106, np.random.default_rng(0), 1500, 4, 4)
    found = [pair for ids in x for pair in operations(lists(listops.spell(ids)))]
    digits = x[(x > 0) & (x < listops.FIRST_OPERATION)] - listops.FIRST_DIGIT
    operators = [nested[0] for nested, _ in found]
    assert_even([np.count_nonzero(digits == digit) for digit in range(10)])
    assert_even([operators.count(name) for name in ("MIN", "MAX", "MED", "SM")])
    assert_even([sum(len(nested) == n + 1 for nested, _ in found) for n in (2, 3, 4)])
    arguments = [y for nested, depth in found if depth < 3 for y in nested[1:]]
    nested = sum(isinstance(argument, list) for argument in arguments)
    error = (nested / len(arguments) - 0.25) / (3 / 16 / len(arguments)) ** 0.5
    assert abs(error) < 4


def assert_even(counts):
    """No count is more than four standard errors from the mean."""
    total, share = sum(counts), 1 / len(counts)
    errors = np.subtract(counts, total * share) / (total * share * (1 - share)) ** 0.5
    assert np.abs(errors).max() < 4


def test_what_is_right_without_reading_on(batch):
    x, y = batch[0], batch[1][:, 0]
    texts = [lists(listops.spell(ids)) for ids in x]
    operators = np.array([nested[0] for nested in texts])
    frequent = np.bincount(y).max() / len(y)
    outermost = sum(
        np.bincount(y[operators == operator]).max() for operator in set(operators)
    ) / len(y)
    shallow = np.mean([flat(nested) == answer for nested, answer in zip(texts, y)])
    # the shares of the docstring, within four standard errors
    assert abs(frequent - 0.16) < 0.033
    assert abs(outermost - 0.34) < 0.043
    assert abs(shallow - 0.50) < 0.045


def flat(nested):
    """The value without nested lists, or a likely one where nothing else is there."""
    digits = [argument for argument in nested[1:] if isinstance(argument, int)]
    if digits:
        return worth([nested[0], *digits])
    return {"MIN": 0, "MAX": 9, "MED": 4, "SM": 0}[nested[0]]


def test_brackets_alone_tell_two_expressions_apart():
    texts = "[SM 1 [MAX 2 3 ] 4 ]", "[SM 1 [MAX 2 3 4 ] ]"
    assert [worth(lists(text)) for text in texts] == [8, 5]
    ids = [[listops.TOKENS.index(word) for word in text.split()] for text in texts]
    assert ids[0] != ids[1]
    brackets = listops.TOKENS.index("]")
    assert [i for i in ids[0] if i != brackets] == [i for i in ids[1] if i != brackets]
    assert [listops.spell([*row, 0, 0]) for row in ids] == list(texts)


def test_a_seed_says_which_batch():
    batches = [
        listops.draw(20, 60, np.random.default_rng(seed), 8) for seed in (5, 5, 6)
    ]
    for first, second in zip(*batches[:2]):
        np.testing.assert_array_equal(first, second)
    assert (batches[0][0] != batches[2][0]).any()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(min_length=3), "min_length must be an int of at least 4"),
        (dict(max_length=9), "max_length must be at least min_length=10"),
        (dict(batch_size=0), "batch_size must be an int of at least 1"),
        (dict(max_args=1), "max_args must be an int of at least 2"),
        (dict(max_depth=1), "max_depth must be an int of at least 2"),
        (dict(max_args=3, max_depth=2), "min_length must be at most 5"),
        # lists of two digits or lists nest to 4, 7, 10 ... tokens
        (dict(max_length=11, min_length=11, max_args=2), "ask for more lengths"),
    ],
)
def test_what_cannot_be_drawn(wrong, message):
    sizes = dict(min_length=10, max_length=20, batch_size=1) | wrong
    with pytest.raises(ValueError, match=message):
        listops.draw(random=np.random.default_rng(0), **sizes)
