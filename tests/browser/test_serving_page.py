"""The page of `examples.serving` in a real browser."""

import contextlib
import os
import shutil
import threading

import numpy as np
import playwright.sync_api
import pytest
import uvicorn

from examples.serving import vocabulary
from examples.serving.app import create_app
from examples.serving.requests import Limits
from tests.examples import serving_models
from tests.ports import free_ports

# Debian's Chromium, or the one that `playwright install chromium` downloads.
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")

PALETTE = [f"#{16 * i:02x}{255 - 16 * i:02x}{i:02x}" for i in range(12)]
PIXELS = vocabulary.Pixels(width=7, height=6, palette=PALETTE, start=[12])


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_api.sync_playwright() as started:
        # Chromium's sandbox does not start as root
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(browser, app):
    """Opens the page of an application, and waits until it knows the model."""
    (port,) = free_ports(1)
    config = uvicorn.Config(app, port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    page = browser.new_page()
    page.set_default_timeout(120_000)  # for a busy machine
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    try:
        page.goto(f"http://127.0.0.1:{port}", wait_until="networkidle")
        page.wait_for_selector("body[data-ready]")
        yield page
        assert errors == []
    finally:
        page.close()
        server.should_exit = True
        thread.join()


@pytest.fixture
def serve(browser, tmp_path):
    """Returns a function that opens the page of a model with tokens of some meaning."""
    with contextlib.ExitStack() as stack:

        def open_page(meaning, vocabulary_size=13):
            table = serving_models.table(vocabulary_size)
            folder = serving_models.save(str(tmp_path / "model"), table)
            vocabulary.write(folder, meaning)
            app = create_app(folder, Limits(max_new_tokens=10**9))
            return stack.enter_context(page_of(browser, app))

        yield open_page


def fill(page, **values):
    for name, value in values.items():
        page.fill(f"#{name}", str(value))


def wait_for_end(page):
    page.wait_for_selector("#start:enabled")


def test_text_appears_after_its_prompt(serve):
    page = serve(vocabulary.Text(), 256)
    prompt = "<b>é & ü</b>\n"
    fill(page, prompt=prompt, max_new_tokens=300, temperature=0)
    page.click("#start")
    wait_for_end(page)
    table = serving_models.table(256)
    expected = bytes(serving_models.likeliest(prompt.encode(), 300, table))
    assert page.text_content("#given") == prompt
    assert page.text_content("#new") == expected.decode(errors="replace")
    assert page.text_content("#status").startswith("300 tokens, ")


def test_ids_are_shown_where_no_more_is_known(serve):
    page = serve(vocabulary.Tokens())
    fill(page, prompt="5 1\n12", max_new_tokens=9, temperature=0)
    page.click("#start")
    wait_for_end(page)
    expected = serving_models.likeliest([5, 1, 12], 9)
    assert page.text_content("#output") == " ".join(map(str, [5, 1, 12, *expected]))


def colors_on(page):
    """Returns the canvas as RGBA, `(height, width, 4)`."""
    width, height, data = page.evaluate(
        """() => {
          const { width, height } = canvas, context = canvas.getContext("2d");
          return [width, height, [...context.getImageData(0, 0, width, height).data]];
        }"""
    )
    return np.reshape(data, (height, width, 4))


def colors_of(ids):
    """Returns opaque colors of the palette, and transparent for ids without color."""
    return [[*bytes.fromhex(PALETTE[i][1:]), 255] if i < 12 else [0] * 4 for i in ids]


def test_a_picture_goes_on_from_what_was_drawn(serve):
    page = serve(PIXELS.model_copy(update={"max_length": 1 + 7 * 6}))
    fill(page, rows=2, temperature=0)
    box = page.locator("#canvas").bounding_box()
    pixel = box["width"] / 7
    x = box["x"] + 3.5 * pixel
    page.mouse.move(x, box["y"] + 0.5 * pixel)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 1.5 * pixel)
    page.mouse.up()
    # a dark pixel at the pointer, lighter ones next to it
    given = [0, 0, 5, 11, 5, 0, 0] * 2
    np.testing.assert_array_equal(colors_on(page)[:2].reshape(-1, 4), colors_of(given))
    assert not colors_on(page)[2:].any()
    page.click("#start")
    wait_for_end(page)
    drawn = serving_models.likeliest([12, *given], 28)
    assert 12 in drawn  # id 12 has no color
    expected = np.reshape(colors_of(given + drawn), (6, 7, 4))
    np.testing.assert_array_equal(colors_on(page), expected)
    # from an empty picture
    fill(page, rows=0)
    page.click("#start")
    wait_for_end(page)
    expected = np.reshape(colors_of(serving_models.likeliest([12], 42)), (6, 7, 4))
    np.testing.assert_array_equal(colors_on(page), expected)


@pytest.mark.parametrize("kind", ["text", "pixels"])
def test_it_appears_token_by_token_until_it_is_stopped(serve, kind):
    large = PIXELS.model_copy(update={"width": 100, "height": 200})
    page = serve(*{"text": (vocabulary.Text(), 256), "pixels": (large, 13)}[kind])
    fill(page, **{"prompt": "a"} if kind == "text" else {"rows": 0})
    page.click("#start")
    page.wait_for_function(
        "parseInt(document.querySelector('#status').textContent) >= 30"
    )
    page.click("#stop")
    wait_for_end(page)
    assert page.text_content("#status") == "Stopped."
    if kind == "text":
        assert len(page.text_content("#new")) > 10
    else:
        seen = colors_on(page)[..., 3] > 0
        assert seen[0].sum() >= 20 and not seen[-1].any()
    page.wait_for_function(
        "fetch('status').then((r) => r.json()).then((s) => s.sessions === 0)"
    )


def test_what_the_service_refuses_is_said(serve):
    page = serve(vocabulary.Text(max_length=20), 256)
    fill(page, prompt="hello", max_new_tokens=16)
    page.click("#start")
    wait_for_end(page)
    assert page.text_content(".failed") == (
        "max_new_tokens must be at most 15 for this prompt. Received: 16"
    )
    fill(page, max_new_tokens=15)
    page.click("#start")
    wait_for_end(page)
    assert page.text_content("#status").startswith("15 tokens, ")
    assert page.locator(".failed").count() == 0
