"""ListOps: what a nested expression of lists of digits comes to.

    [MAX 2 9 [MIN 4 7 ] 0 ]  ->  9

Nangia & Bowman 2018, arXiv 1804.06028, with the sizes of Long Range Arena, arXiv
2011.04006. MIN, MAX, MED (median) and SM (sum modulo 10) take 2 to `max_args`
arguments. The median of an even number is the integer part of the mean of the two in
the middle, as published. An argument is an operation with a probability of 1/4 and a
digit otherwise (the published `VALUE_P`, whatever its name says), and always a digit at
`max_depth`, where the outermost operation has depth 1. A digit alone is not drawn.

Closing brackets are tokens: without them the arguments of a list have no end. A length
counts all tokens that a model reads. Expressions of other lengths than asked for are
thrown away, too long ones as soon as what is open cannot be closed in time.

What is right without reading on, of 100 to 500 tokens: always the most frequent answer
in 16 expressions of 100, the most frequent one of the outermost operator in 34, and
that operator over the digits that stand in its own list, without nested ones, in 50.
"""

import numpy as np

OPERATION_P = 0.25
# A length that comes up less often than once in so many expressions is not drawn.
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
    """Draws ids `(B, L)`, padded at the right with 0, and what they come to, `(B, 1)`.

    Operations have `max_args` arguments at most and nest `max_depth - 1` deep at most.
    """
    x = np.zeros((batch_size, max_length), np.int32)
    y = np.zeros((batch_size, 1), np.int32)
    for row in range(batch_size):
        ids, y[row] = expression(min_length, max_length, random, max_args, max_depth)
        x[row, : len(ids)] = ids
    return x, y, np.ones((batch_size, 1), np.float32)


def expression(min_length, max_length, random, max_args, max_depth):
    """Ids of the first expression of a length asked for, and its value."""
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
    """Ids and value of an expression, or `None` where it would be too long."""
    # every place is an operation or a digit: more are drawn than can be needed
    nests = random.random(max_length) < OPERATION_P
    nests[0] = True
    operators = random.integers(len(OPERATIONS), size=max_length)
    counts = random.integers(2, max_args + 1, size=max_length)
    digits = random.integers(10, size=max_length)
    ids, unfinished = [], []
    missing = 1  # tokens after those so far, at least
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
