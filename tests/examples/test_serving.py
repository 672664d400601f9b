"""The service: streams, refusals, clients that leave, and sampled tokens."""

import asyncio
import threading

import numpy as np
import pytest
import scipy.special

from examples.serving import app as app_module
from examples.serving.app import create_app
from examples.serving.batching import Session
from examples.serving.model import ExportedModel
from examples.serving.requests import Limits
from examples.serving.sampling import Sampler
from tests.examples import serving_models
from tests.examples.serving_client import Exchange

ENDLESS = {"tokens": [1], "max_new_tokens": 10**9}
LOGITS = np.array([1.0, -np.inf, 3.0, 2.0, 3.0, -1.0], "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return serving_models.save(str(tmp_path_factory.mktemp("served")))


def serve(folder, scenario, **limits):
    """Runs `scenario`, an async function of the application, while it serves."""

    async def run():
        app = create_app(folder, Limits(**{"max_new_tokens": 10**9, **limits}))
        async with app.router.lifespan_context(app):
            await asyncio.wait_for(scenario(app), timeout=60)

    asyncio.run(run())


def served(**limits):
    """Returns a decorator that makes a test from a scenario."""
    return lambda scenario: lambda folder: serve(folder, scenario, **limits)


def likeliest(app, prompt, number):
    """Sends a request for the likeliest tokens."""
    body = {"tokens": prompt, "max_new_tokens": number, "temperature": 0}
    return Exchange(app, body)


async def assert_it_goes_on(app):
    expected = serving_models.likeliest([7], 2)
    assert await likeliest(app, [7], 2).tokens() == expected


@served()
async def test_many_sessions_get_what_each_gets_alone(app):
    prompts = [[3], [5, 1], [5, 2], [1, 2, 3, 4, 5, 6, 7], [9, 9]]
    lengths = [1, 20, 30, 40, 25]
    exchanges = [likeliest(app, p, n) for p, n in zip(prompts, lengths)]
    for exchange, prompt, length in zip(exchanges, prompts, lengths):
        expected = serving_models.likeliest(prompt, length)
        assert await exchange.tokens() == expected
    status = await Exchange(app, path="/status").answer()
    assert status["sessions"] == 0 and status["tokens"] == sum(lengths)
    # the longest one decides, or others that started a prompt later
    assert 39 <= status["steps"] <= 45


@served()
async def test_equal_seeds_give_equal_tokens_whatever_others_do(app):
    asked = {"tokens": [4, 2], "max_new_tokens": 30, "seed": 5, "top_k": 4}
    alone = await Exchange(app, asked).tokens()
    others = [
        Exchange(app, {"tokens": [i] * i, "max_new_tokens": 9 * i, "seed": 5})
        for i in (1, 2, 3)
    ]
    assert await Exchange(app, asked).tokens() == alone
    assert await Exchange(app, {**asked, "seed": 6}).tokens() != alone
    await asyncio.gather(*(other.tokens() for other in others))


def test_text_comes_in_whole_characters():
    prompt, rest = "a é".encode()[:-1], "é 𝄞".encode()[1:] + b"\xffz\xe2\x82"

    async def run():
        session = Session(prompt, Sampler(), len(rest), seconds=60)
        for token in rest:
            session.add(token)
        return [event async for event in app_module.text_events(session)]

    *events, last = asyncio.run(run())
    assert bytes(event["token"] for event in events) == rest
    texts = [event["text"] for event in events]
    assert texts == ["é", " ", "", "", "", "𝄞", "\ufffd", "z", "", ""]
    assert last == {"end": "length", "text": "\ufffd"}


REFUSED = [
    (b"{", 400, "The body must be JSON. Invalid JSON"),
    ([], 422, "the body: Input should be an object. Received: []"),
    ({}, 422, "A request must have a prompt, either text or tokens."),
    ({"text": "a"}, 422, "This model knows no text: send the prompt as tokens."),
    ({"tokens": []}, 422, "The prompt must have at least one token."),
    ({"tokens": [True]}, 422, "tokens.0: Input should be a valid integer. Received"),
    ({"tokens": [12, 13]}, 422, "at least 0 and less than 13. Received: 13"),
    ({"tokens": [1] * 6}, 422, "A prompt may have 5 tokens. Received: 6"),
    ({"tokens": [1], "max_new_tokens": 8}, 422, "must be at most 7 for this prompt. R"),
    ({"tokens": [1], "temperature": -1}, 422, "temperature: Input should be greate"),
    ({"tokens": [1], "topk": 1}, 422, "topk: Extra inputs are not permitted. Rece"),
    (b" " * 5000, 413, "A request may have 1060 bytes, not more."),
]


@served(max_prompt_length=5, max_new_tokens=7)
async def test_what_is_wrong_is_refused_with_a_sentence(app):
    for body, status, sentence in REFUSED:
        exchange = Exchange(app, body)
        answer = await exchange.answer()
        assert (answer.keys(), exchange.status) == ({"error"}, status)
        assert sentence in answer["error"]


@served(max_sessions=1)
async def test_a_full_service_refuses_until_a_client_leaves(app):
    endless = Exchange(app, ENDLESS)
    await endless.chunks.get()  # it is running
    refused = Exchange(app, {"tokens": [2]})
    sentence = "All 1 sessions are taken: ask again later."
    assert await refused.answer() == {"error": sentence}
    assert refused.status == 503 and refused.headers[b"retry-after"] == b"1"
    await endless.leave()
    await assert_it_goes_on(app)


@served()
async def test_a_client_that_leaves_takes_no_further_step(app):
    leaving, staying = Exchange(app, ENDLESS), Exchange(app, ENDLESS)
    await leaving.chunks.get()
    await staying.chunks.get()
    await leaving.leave()
    status = await Exchange(app, path="/status").answer()
    assert status["sessions"] == 1
    await staying.leave()
    before = await Exchange(app, path="/status").answer()
    # a whole session later, no other session has sampled tokens
    await Exchange(app, {"tokens": [2], "max_new_tokens": 50}).tokens()
    after = await Exchange(app, path="/status").answer()
    # one step of sessions that left may have been running
    assert after["tokens"] - before["tokens"] in (50, 51, 52)


def test_a_request_ends_in_time_while_the_model_works(folder, monkeypatch):
    at_work, go_on = threading.Event(), threading.Event()
    prefill = ExportedModel.prefill

    def long(model, prompts):
        at_work.set()
        go_on.wait()
        return prefill(model, prompts)

    async def scenario(app):
        with monkeypatch.context() as patch:
            patch.setattr(ExportedModel, "prefill", long)
            try:
                assert await Exchange(app, ENDLESS).events() == [{"end": "time"}]
                assert at_work.is_set()
            finally:
                go_on.set()
        await assert_it_goes_on(app)

    serve(folder, scenario, seconds=0.5)


def test_one_sequence_that_fails_does_not_end_the_others(tmp_path):
    folder = serving_models.save(str(tmp_path / "short"), longest=10)

    async def scenario(app):
        lengths = {1: 9, 3: 40, 4: 6, 5: 5}  # the second fails at its tenth token
        exchanges = {n: likeliest(app, [2] * n, m) for n, m in lengths.items()}
        for n, exchange in exchanges.items():
            *events, last = await exchange.events()
            expected = serving_models.likeliest([2] * n, lengths[n])
            if n == 3:
                expected = expected[:7]
            assert [event["token"] for event in events] == expected
            assert last["end"] == ("error" if n == 3 else "length")
        assert (await Exchange(app, {"tokens": [2] * 10}).events())[0]["end"] == "error"
        await assert_it_goes_on(app)

    serve(folder, scenario)


def test_logits_that_are_no_numbers_end_a_session(tmp_path):
    nothing = np.full_like(serving_models.table(), np.nan)
    folder = serving_models.save(str(tmp_path / "broken"), nothing)

    async def scenario(app):
        assert [e["end"] for e in await Exchange(app, ENDLESS).events()] == ["error"]

    serve(folder, scenario)


def test_the_end_of_the_service_ends_its_sessions(folder):
    async def run():
        app = create_app(folder, Limits(max_new_tokens=10**9))
        async with app.router.lifespan_context(app):
            exchange = Exchange(app, ENDLESS)
            await exchange.chunks.get()
        *_, last = await exchange.events()
        assert last["end"] == "error"

    asyncio.run(asyncio.wait_for(run(), timeout=60))


@pytest.mark.parametrize(
    "temperature, top_k, allowed",
    [
        (1.0, None, [0, 2, 3, 4, 5]),
        (0.5, None, [0, 2, 3, 4, 5]),
        (1.0, 3, [2, 3, 4]),
        (2.0, 1, [2]),  # of two equal logits, the lower id
        (1.0, 100, [0, 2, 3, 4, 5]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature, top_k, allowed):
    sampler = Sampler(temperature, top_k, seed=0)
    n = 4000
    counts = np.bincount([sampler.draw(LOGITS) for _ in range(n)], minlength=6)
    expected = np.zeros(6)
    expected[allowed] = scipy.special.softmax(LOGITS[allowed] / temperature)
    error = np.sqrt(n * expected * (1 - expected)) + 1e-9
    assert np.abs((counts - n * expected) / error).max() < 4.5
