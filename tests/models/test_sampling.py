"""Tokens are drawn with the probabilities that a slow reference says."""

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
    dict(top_p=0.8, min_p=0.3, temperature=2.0),  # another set in another order
    dict(top_k=9, top_p=0.95, min_p=0.3, temperature=2.5, penalty=1.3),
]


def reference(temperature, top_k, top_p, min_p, penalty):
    """Probabilities of tokens, one option after another, token by token."""
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
    options = {**DEFAULTS, **changes}
    options["repetition_penalty"] = options.pop("penalty")
    logits = tf.repeat(tf.constant(logits, dtype)[tf.newaxis], count, axis=0)
    seen = tf.repeat(tf.constant(SEEN)[tf.newaxis], count, axis=0)
    tokens, finite = sampling.draw(
        sampling.check_options(seed, **options), logits, seen, tf.constant(step)
    )
    return tokens.numpy(), finite.numpy()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frequencies_are_those_of_the_reference(options):
    count = 40_000
    expected = reference(**{**DEFAULTS, **options})
    tokens, finite = draw(count, **options)
    observed = np.bincount(tokens, minlength=13)
    assert finite.all()
    assert not observed[expected == 0].any()
    possible = (expected > 0) & (expected < 1)
    assert possible.any() or options == dict(min_p=1.0)
    p = expected[possible]
    errors = (observed[possible] - count * p) / np.sqrt(count * p * (1 - p))
    assert (np.abs(errors) < 4.5).all()


def test_the_options_leave_different_tokens():
    # else the comparison above would see no filter
    sizes = {(reference(**{**DEFAULTS, **options}) > 0).sum() for options in OPTIONS}
    assert len(sizes) >= 6


@pytest.mark.parametrize("penalty", [0.5, 3.0])
def test_the_penalty_changes_what_is_likeliest(penalty):
    expected = reference(**{**DEFAULTS, "penalty": penalty}).argmax()
    (token,), _ = draw(temperature=0, penalty=penalty)
    assert token == expected
    without = {draw(temperature=0, penalty=p)[0][0] for p in (0.5, 1, 3.0)}
    assert len(without) > 1


def test_min_p_works_in_float64_and_half_precision():
    for dtype in (tf.float16, tf.float64):
        tokens, _ = draw(2000, min_p=0.2, dtype=dtype)
        assert set(tokens) == set(reference(**{**DEFAULTS, "min_p": 0.2}).nonzero()[0])


def test_tokens_that_are_never_drawn_stay_so_under_a_penalty():
    logits = np.where(np.arange(13) == 3, 0.5, -np.inf)
    tokens, finite = draw(50, logits=logits, penalty=5.0, min_p=0.5)
    assert set(tokens) == {3} and finite.all()


def test_each_row_says_whether_a_token_could_be_drawn():
    logits = tf.constant([[0.0, np.nan], [1.0, 2.0], [-np.inf, -np.inf], [np.inf, 0]])
    for temperature in (0, 1):
        options = {**DEFAULTS, "temperature": temperature}
        options["repetition_penalty"] = options.pop("penalty")
        _, finite = sampling.draw(sampling.check_options(0, **options), logits, (), 0)
        assert finite.numpy().tolist() == [False, True, False, False]


def test_rows_draw_alike_whatever_stands_below_them():
    few, many = draw(3)[0], draw(50)[0]
    np.testing.assert_array_equal(few, many[:3])
    assert (draw(50, step=1)[0] != many).any()
    assert (draw(50, seed=4)[0] != many).any()
