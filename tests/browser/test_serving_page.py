"""The page of `examples.serving` in a real browser."""

import contextlib
import os
import shutil
import threading
import time

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


@pytest.fixture
def serve(tmp_path):
    """Returns a function that opens the page of a model with tokens of some meaning."""
    with playwright.sync_api.sync_playwright() as started, contextlib.ExitStack() as at:
        # Chromium's sandbox does not start as root
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page, errors = browser.new_page(), []
        page.set_default_timeout(120_000)  # for a busy machine
        page.on("pageerror", lambda error: errors.append(error))

        def open_page(meaning, vocabulary_size=13):
            table = serving_models.table(vocabulary_size)
            folder = serving_models.save(str(tmp_path / "model"), table)
            vocabulary.write(folder, meaning)
            app = create_app(folder, Limits(max_new_tokens=10**9))
            (port,) = free_ports(1)
            server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
            thread = threading.Thread(target=server.run)
            thread.start()
            at.callback(thread.join)
            at.callback(setattr, server, "should_exit", True)
            at.callback(browser.close)
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            page.goto(f"http://127.0.0.1:{port}", wait_until="networkidle")
            page.wait_for_selector("body[data-ready]")
            return page

        yield open_page
        assert errors == []


def fill(page, **values):
    for name, value in values.items():
        page.fill(f"#{name}", str(value))


def go_on(page, **values):
    """Fills in fields, starts, and waits for the end."""
    fill(page, **values)
    page.click("#start")
    page.wait_for_selector("#start:enabled")


def test_text_is_refused_goes_on_after_its_prompt_and_is_stopped(serve):
    page, prompt = serve(vocabulary.Text(), 256), "<b>é & ü</b>\n"
    go_on(page, prompt="", max_new_tokens=300, temperature=0)
    sentence = "The prompt must have at least one token."
    assert page.text_content(".failed") == sentence
    go_on(page, prompt=prompt)
    table = serving_models.table(256)
    expected = bytes(serving_models.likeliest(prompt.encode(), 300, table))
    assert page.text_content("#given") == prompt
    assert page.text_content("#new") == expected.decode(errors="replace")
    assert page.text_content("#status").startswith("300 tokens, ")
    assert page.locator(".failed").count() == 0
    fill(page, max_new_tokens=10**8)
    page.click("#start")
    page.wait_for_function(
        "parseInt(document.querySelector('#status').textContent) >= 30"
    )
    page.click("#stop")
    page.wait_for_selector("#start:enabled")
    assert page.text_content("#status") == "Stopped."
    assert len(page.text_content("#new")) > 10
    page.wait_for_function(
        "fetch('status').then((r) => r.json()).then((s) => s.sessions === 0)"
    )


def test_ids_are_shown_where_no_more_is_known(serve):
    page = serve(vocabulary.Tokens())
    go_on(page, prompt="5 1\n12", max_new_tokens=9, temperature=0)
    expected = serving_models.likeliest([5, 1, 12], 9)
    assert page.text_content("#output") == " ".join(map(str, [5, 1, 12, *expected]))


PALETTE = [f"#{16 * i:02x}{255 - 16 * i:02x}{i:02x}" for i in range(12)]


def assert_shows(page, ids):
    """Compares the canvas, 6 by 7, with these ids and no colour elsewhere."""
    data = page.evaluate(
        "[...canvas.getContext('2d').getImageData(0, 0, 7, 6).data].map(Number)"
    )
    colours = [[*bytes.fromhex(colour[1:]), 255] for colour in PALETTE] + [[0] * 4] * 2
    expected = [colours[i] for i in [*ids, *[12] * 42][:42]]  # id 12 has no colour
    np.testing.assert_array_equal(np.reshape(data, (42, 4)), expected)


def test_a_picture_goes_on_from_what_was_drawn(serve):
    meaning = dict(width=7, height=6, palette=PALETTE, start=[12], max_length=43)
    page = serve(vocabulary.Pixels(**meaning))
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
    assert_shows(page, given)
    go_on(page)
    drawn = serving_models.likeliest([12, *given], 28)
    assert 12 in drawn
    assert_shows(page, given + drawn)
    # from an empty picture
    go_on(page, rows=0)
    assert_shows(page, serving_models.likeliest([12], 42))
