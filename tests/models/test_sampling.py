"""Tokens are sampled with the probabilities of a slow reference."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer.models import sampling

LOGITS = 2 * np.random.default_rng(0).normal(size=13)
SEEN = np.arange(13) % 3 == 0
DEFAULTS = dict(temperature=1, top_k=None, top_p=None, min_p=None, penalty=1)
OPTIONS = [
    dict(min_p=0.2),
    dict(min_p=1.0),
    dict(min_p=1e-6),
    dict(penalty=1.7),
    dict(penalty=0.6),
    dict(temperature=2.0, min_p=0.3),
    dict(temperature=0.6, penalty=1.4),
    dict(top_k=6, min_p=0.15),
    dict(top_p=0.8, min_p=0.3, temperature=2.0),  # the result depends on the order
    dict(top_k=9, top_p=0.95, min_p=0.3, temperature=2.5, penalty=1.3),
]


def reference(temperature, top_k, top_p, min_p, penalty):
    """Returns probabilities of tokens, and applies one option after another."""
    scores = {}
    for token, logit in enumerate(LOGITS):
        if SEEN[token]:
            logit = logit / penalty if logit > 0 else logit * penalty
        scores[token] = np.exp(logit / temperature)
    best_first = sorted(scores, key=lambda token: -scores[token])
    kept = best_first[:top_k]
    if top_p is not None:
        total, nucleus, reached = sum(scores[token] for token in kept), [], 0.0
        for token in kept:
            if reached < top_p:
                nucleus.append(token)
            reached += scores[token] / total
        kept = nucleus
    if min_p is not None:
        kept = [token for token in kept if scores[token] >= min_p * scores[kept[0]]]
    probabilities = np.zeros(len(LOGITS))
    probabilities[kept] = [scores[token] for token in kept]
    return probabilities / probabilities.sum()


def draw(count=1, seed=3, step=0, logits=LOGITS, dtype=tf.float32, **changes):
    """Samples tokens of `count` equal rows, and checks that none failed."""
    options = {**DEFAULTS, **changes}
    options["repetition_penalty"] = options.pop("penalty")
    logits = tf.repeat(tf.constant(logits, dtype)[tf.newaxis], count, axis=0)
    seen = tf.repeat(tf.constant(SEEN)[tf.newaxis], count, axis=0)
    tokens, finite = sampling.draw(
        sampling.check_options(seed, **options), logits, seen, tf.constant(step)
    )
    assert finite.numpy().all()
    return tokens.numpy()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frequencies_are_those_of_the_reference(options):
    count = 40_000
    expected = reference(**{**DEFAULTS, **options})
    observed = np.bincount(draw(count, **options), minlength=13)
    assert not observed[expected == 0].any()
    possible = (expected > 0) & (expected < 1)
    assert possible.any() or options == dict(min_p=1.0)
    p = expected[possible]
    errors = (observed[possible] - count * p) / np.sqrt(count * p * (1 - p))
    assert (np.abs(errors) < 4.5).all()


def test_the_penalty_changes_what_is_likeliest():
    drawn = {penalty: draw(temperature=0, penalty=penalty)[0] for penalty in (0.5, 3.0)}
    for penalty, token in drawn.items():
        assert token == reference(**{**DEFAULTS, "penalty": penalty}).argmax()
    assert len({*drawn.values(), draw(temperature=0)[0]}) > 1


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64])
@pytest.mark.parametrize(
    "options", [dict(min_p=0.2), dict(top_k=np.int64(5), top_p=0.9)], ids=str
)
def test_other_dtypes_leave_the_same_tokens(dtype, options):
    expected = reference(**{**DEFAULTS, **options}).nonzero()[0]
    assert set(draw(2000, dtype=dtype, **options)) == set(expected)


ONE = np.where(np.arange(13) == 3, 0.5, -np.inf)
EQUAL = np.zeros(13)


@pytest.mark.parametrize(
    "logits, options, allowed",
    [
        # tokens of probability 0 keep it
        (ONE, dict(penalty=5.0, min_p=0.5), {3}),
        (ONE, dict(top_k=2), {3}),
        (ONE, dict(top_p=0.5), {3}),
        # the first of equal logits
        (EQUAL, dict(top_k=1), {0}),
        (EQUAL, dict(top_k=3), {0, 1, 2}),
        (EQUAL, dict(top_p=1.5 / 13), {0, 1}),
        # low temperatures, also below the range of float16
        (LOGITS, dict(temperature=1.2e-38), {LOGITS.argmax()}),
        (1e30 * LOGITS, dict(temperature=1e-30), {LOGITS.argmax()}),
        (LOGITS, dict(temperature=1e-9, dtype=tf.float16), {LOGITS.argmax()}),
    ],
)
def test_all_that_may_be_drawn_is_drawn(logits, options, allowed):
    assert set(draw(300, logits=logits, **options)) == allowed


@pytest.mark.parametrize("temperature", [0, 1])
def test_each_row_says_whether_a_token_could_be_drawn(temperature):
    logits = tf.constant([[0.0, np.nan], [1.0, 2.0], [-np.inf, -np.inf], [np.inf, 0]])
    options = sampling.check_options(0, temperature, None, None, None, 1)
    _, finite = sampling.draw(options, logits, (), 0)
    assert finite.numpy().tolist() == [False, True, False, False]


def test_rows_draw_alike_whatever_stands_below_them():
    few, many = draw(3), draw(50)
    np.testing.assert_array_equal(few, many[:3])
    assert (draw(50, step=1) != many).any()
    assert (draw(50, seed=4) != many).any()
