"""ListOps: the value of a nested expression of lists of digits.

    [MAX 2 9 [MIN 4 7 ] 0 ]  ->  9

Nangia & Bowman 2018, arXiv 1804.06028, with the sizes of Long Range Arena, arXiv
2011.04006. MIN, MAX, MED (median) and SM (sum modulo 10) take 2 to `max_args`
arguments. As published, the median of an even number of values is the integer part of
the mean of the middle two. An argument is an operation with probability 1/4 (the
published `VALUE_P`, despite its name) and otherwise a digit. At `max_depth` it is
always a digit; the outermost operation has depth 1. A single digit is no expression.

Closing brackets are tokens, as the end of a list would be unknown without them. A
length counts all tokens that a model reads. Expressions of other lengths are discarded,
and too long ones as soon as their open lists cannot be closed in time.

Baselines for 100 to 500 tokens: the most frequent answer is right in 16 % of
expressions, the most frequent answer of the outermost operator in 34 %, and this
operator applied to the digits directly in its list, without nested lists, in 50 %.
"""

import numpy as np

OPERATION_P = 0.25
# Expressions that are sampled to find one of the wanted length.
TRIALS = 20_000


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def sum_modulo_10(values):
    return sum(values) % 10


OPERATIONS = {"[MIN": min, "[MAX": max, "[MED": median, "[SM": sum_modulo_10}
FUNCTIONS = tuple(OPERATIONS.values())
# Names by id; 0 is padding.
TOKENS = ("", *"0123456789", *OPERATIONS, "]")
VOCABULARY_SIZE = len(TOKENS)
FIRST_DIGIT, FIRST_OPERATION = TOKENS.index("0"), TOKENS.index("[MIN")
END = TOKENS.index("]")


def draw(min_length, max_length, random, batch_size, max_args=10, max_depth=10):
    """Samples ids `(B, L)`, padded at the right with 0, and values `(B, 1)`.

    Operations have at most `max_args` arguments, and nest at most `max_depth - 1` deep.
    """
    x = np.zeros((batch_size, max_length), np.int32)
    y = np.zeros((batch_size, 1), np.int32)
    for row in range(batch_size):
        ids, y[row] = expression(min_length, max_length, random, max_args, max_depth)
        x[row, : len(ids)] = ids
    return x, y, np.ones((batch_size, 1), np.float32)


def expression(min_length, max_length, random, max_args, max_depth):
    """Returns ids and value of the first expression that has a wanted length."""
    for _ in range(TRIALS):
        grown = grow(max_length, random, max_args, max_depth)
        if grown and len(grown[0]) >= min_length:
            return grown
    raise ValueError(
        f"min_length and max_length must leave room for expressions that come up. None "
        f"of {TRIALS:,} had such a length: ask for more lengths. Received: min_length="
        f"{min_length}, max_length={max_length}, max_args={max_args}, max_depth="
        f"{max_depth}"
    )


def grow(max_length, random, max_args, max_depth):
    """Returns ids and value of an expression, or `None` if it gets too long."""
    # samples an operation and a digit for each position, which is more than enough
    nests = random.random(max_length) < OPERATION_P
    nests[0] = True
    operators = random.integers(len(OPERATIONS), size=max_length)
    counts = random.integers(2, max_args + 1, size=max_length)
    digits = random.integers(10, size=max_length)
    ids, unfinished = [], []
    missing = 1  # least number of tokens still to come
    for nested, operator, count, value in zip(
        nests.tolist(), operators.tolist(), counts.tolist(), digits.tolist()
    ):
        if nested and len(unfinished) < max_depth - 1:
            ids.append(FIRST_OPERATION + operator)
            unfinished.append((operator, count, []))
            missing += count
            if len(ids) + missing > max_length:
                return None
            continue
        ids.append(FIRST_DIGIT + value)
        missing -= 1
        while unfinished:
            operator, count, values = unfinished[-1]
            values.append(value)
            if len(values) < count:
                break
            unfinished.pop()
            ids.append(END)
            missing -= 1
            value = FUNCTIONS[operator](values)
        if not unfinished:
            return ids, value
