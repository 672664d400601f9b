"""Prompts of any length, stop tokens, several samples, pieces and bytes."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM, generate, generate_stream
from keras_performer.models import sampling, token_loop
from tests.models.test_generate import small_model
from tests.models.token_models import assert_likeliest

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5], [3], [5, 8, 9]]
LENGTH = 16


@functools.cache
def model_of(kind="rotary"):
    keras.utils.set_random_seed(3)  # no effect of earlier tests on the weights
    options = {
        "rotary": {},
        # for tests that do not need attention
        "convolution": dict(attention="none", conv_kernel_size=3),
        "bytes": dict(attention="none", vocabulary_size=256),
        "learned": dict(
            feature_map="softmax",
            position_embedding="learned",
            conv_kernel_size=3,
            exact_window=4,
        ),
    }
    return small_model(**options[kind])


def lists(rows):
    return [row.tolist() for row in rows]


def test_prompts_of_different_lengths_are_continued_as_if_alone():
    model, options = model_of("learned"), dict(repetition_penalty=1.5)
    together = generate(model, PROMPTS, LENGTH, temperature=0, **options)
    assert together.shape == (5, LENGTH) and together.dtype == np.int32
    for prompt, row in zip(PROMPTS[:2], together):  # only two, as each length is traced
        alone = generate(model, [prompt], LENGTH, temperature=0, **options)
        assert row.tolist() == alone[0].tolist()
    # different prompts have different continuations
    assert len({tuple(row[-8:]) for row in together}) > 1


def test_the_penalty_is_for_tokens_of_the_prompt_and_for_those_drawn():
    model, penalty = model_of(), 2.0
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    options = dict(temperature=0, repetition_penalty=penalty)
    rows = generate(model, prompts, LENGTH, **options)
    without = generate(model, prompts, LENGTH, temperature=0)
    for prompt, row, logits in zip(prompts, rows, model(rows[:, :-1]).numpy()):
        for index in range(len(prompt), LENGTH):
            scores = logits[index - 1].copy()
            for token in set(row[:index]):
                scores[token] *= 1 / penalty if scores[token] > 0 else penalty
            assert row[index] == scores.argmax()
    assert (rows != without).any(1).all()


def test_sequences_may_have_the_length_of_the_model_and_one_more():
    model = model_of("learned")
    rows = generate(model, PROMPTS, model.max_length + 1, temperature=0)
    for prompt, row in zip(PROMPTS, rows):
        assert row[: len(prompt)].tolist() == prompt
        assert_likeliest(model, row[np.newaxis], len(prompt))


def test_prompts_may_be_other_sequences():
    model = model_of("convolution")
    expected = generate(model, PROMPTS, LENGTH, seed=0)
    for prompt in (
        [np.array(prompt) for prompt in PROMPTS],
        tuple(map(tuple, PROMPTS)),
        [tf.constant(prompt) for prompt in PROMPTS],
        tf.ragged.constant(PROMPTS),
    ):
        drawn = generate(model, prompt, LENGTH, seed=0)
        np.testing.assert_array_equal(drawn, expected)


def cut(row, start, stops):
    """Returns a sequence up to the first stop token after its prompt."""
    for index in range(start, len(row)):
        if row[index] in stops:
            return row[: index + 1].tolist()
    return row.tolist()


def test_a_sequence_ends_with_its_first_stop_token():
    options = dict(seed=1, temperature=2.0)
    model, prompts = model_of("convolution"), [[2, 6], [6, 2], [1, 2]]
    whole = generate(model, prompts, LENGTH, **options)
    for stops in ([], [2, 6], 6, [6]):
        ended = generate(model, prompts, LENGTH, stop_tokens=stops, **options)
        assert isinstance(ended, list) and ended[0].dtype == np.int32
        expected = [cut(row, 2, np.atleast_1d(stops)) for row in whole]
        assert lists(ended) == expected
        assert len(set(map(len, expected))) > 1 or stops != [2, 6]


def test_the_loop_ends_when_all_sequences_have():
    model = model_of()
    prompts = np.array([[3, 1], [2, 6]], "int32")
    expected = generate(model, prompts, LENGTH, temperature=0)
    stops = expected[:, 4]  # sampled third, or earlier
    options = sampling.check_options(0, 0, None, None, None, 1)
    options = options._replace(stop_tokens=tf.constant(stops))
    read, extend = token_loop.compiled(model, options)
    logits, state = read(tf.constant(prompts), model.get_initial_state(2))
    carry = token_loop.Carry((), state, (), tf.zeros(2, tf.bool))
    carry, _ = token_loop.draw(options, logits, carry, 2)
    drawn, *_ = extend(options, carry, tf.constant(3), 12)
    lengths = [len(cut(row, 2, stops)) - 2 for row in expected]
    assert drawn.shape[0] == max(lengths) - 1 < 12


def test_what_follows_a_stop_token_may_be_nan():
    model = small_model()
    prompts, options = [[3, 1], [4, 5], [9, 9], [7, 1]], dict(seed=0, temperature=4.0)
    expected = lists(generate(model, prompts, LENGTH, stop_tokens=2, **options))
    assert len(set(map(len, expected))) > 1
    embeddings = model.embedding.embeddings.numpy()
    embeddings[2] = np.nan  # ended rows read it while others continue
    model.embedding.embeddings.assign(embeddings)
    drawn = generate(model, prompts, LENGTH, stop_tokens=2, **options)
    assert lists(drawn) == expected
    with pytest.raises(ValueError, match="logits are not finite"):
        generate(model, prompts, LENGTH, **options)


def test_samples_are_those_of_a_prompt_that_is_repeated(monkeypatch):
    options, batches = dict(seed=2, temperature=2.0), []
    get_initial_state = PerformerLM.get_initial_state
    monkeypatch.setattr(
        PerformerLM,
        "get_initial_state",
        lambda self, batch: batches.append(batch) or get_initial_state(self, batch),
    )
    samples = generate(model_of(), PROMPTS, LENGTH, num_samples=3, **options)
    assert sum(batches) == len(PROMPTS)  # each prompt was read once
    repeated = [prompt for prompt in PROMPTS for _ in range(3)]
    flat = generate(model_of(), repeated, LENGTH, **options)
    np.testing.assert_array_equal(samples.reshape(15, LENGTH), flat)
    ended = generate(
        model_of(), PROMPTS, LENGTH, num_samples=3, stop_tokens=6, **options
    )
    for prompt, rows, of_prompt in zip(PROMPTS, samples, ended):
        assert lists(of_prompt) == [cut(row, len(prompt), [6]) for row in rows]


def joined(prompts, stream):
    whole = [list(prompt) for prompt in prompts]
    for pieces in stream:
        assert len(pieces) == len(whole)
        for row, piece in zip(whole, pieces):
            row.extend(piece.tolist())
    return whole


def test_pieces_joined_are_what_generate_returns():
    options = dict(
        seed=5, temperature=2.0, stop_tokens=[6, 10], repetition_penalty=1.2, min_p=0.01
    )
    stream = generate_stream(model_of(), PROMPTS, LENGTH, chunk_size=4, **options)
    expected = lists(generate(model_of(), PROMPTS, LENGTH, **options))
    assert joined(PROMPTS, stream) == expected
    assert len(set(map(len, expected))) > 1


def test_pieces_come_as_they_are_made(monkeypatch):
    asked = []
    draw = token_loop.draw
    monkeypatch.setattr(
        token_loop, "draw", lambda *args: asked.append(1) or draw(*args)
    )
    stream = generate_stream(model_of(), [[3, 1]], 12, seed=0, chunk_size=4)
    assert not asked  # nothing runs before the first piece is requested
    sizes = [len(piece) for (piece,) in stream]
    assert asked and sizes == [1, 4, 4, 1]


def test_bytes_are_answered_in_bytes():
    model, texts = model_of("bytes"), [b"Once upon", b"\xff\x00"]
    ids = [list(text) for text in texts]
    options = dict(seed=0, temperature=3.0)
    tokens = generate(model, ids, LENGTH, **options)
    expected = [bytes(row.tolist()) for row in tokens]
    assert generate(model, texts, LENGTH, **options) == expected
    alone = generate(model, ids[:1], LENGTH, **options)
    assert generate(model, texts[0], LENGTH, **options) == bytes(alone[0].tolist())
    stop = expected[0][11]
    ended = generate(model, texts, LENGTH, stop_tokens=stop, **options)
    assert ended == [bytes(cut(row, len(x), [stop])) for row, x in zip(tokens, texts)]
    # samples and pieces are bytes, too
    samples = generate(model, b"ab", LENGTH, num_samples=2, **options)
    tokens = generate(model, [[97, 98]], LENGTH, num_samples=2, **options)
    assert samples == [bytes(row.tolist()) for row in tokens[0]]
    stream = generate_stream(model, b"ab", LENGTH, chunk_size=5, **options)
    whole = generate(model, b"ab", LENGTH, **options)
    assert b"ab" + b"".join(stream) == whole
    stream = generate_stream(model, [b"ab"], LENGTH, num_samples=2, **options)
    pieces = [b"".join(of_sample) for of_sample in zip(*(x[0] for x in stream))]
    assert [b"ab" + piece for piece in pieces] == samples
