"""The example `translation`, small."""

import numpy as np
import pytest
from PIL import Image

from examples import translation


@pytest.fixture(scope="module")
def model():
    """A model that is not trained, and eight examples."""
    model = translation.make_model(translation.FEATURES, steps=100)
    given = translation.examples(8, np.random.default_rng(1))
    model(given["x"])
    return model, given


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (7, "seven"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (1000, "one thousand"),
        (20_010, "twenty thousand ten"),
        (305_012, "three hundred five thousand twelve"),
        (
            777_777,
            "seven hundred seventy-seven thousand seven hundred seventy-seven",
        ),
    ],
)
def test_numbers_in_words(number, words):
    assert translation.spelled(number) == words


def test_each_byte_is_followed_by_its_target():
    given = translation.examples(200, np.random.default_rng(0))
    (digits, text), targets = given["x"], given["y"]
    np.testing.assert_array_equal(targets[:, :-1], text[:, 1:])
    np.testing.assert_array_equal(given["sample_weight"], targets > 0)
    lengths = set()
    for row, before, after in zip(digits, text, targets):
        number = bytes(row).lstrip(b"\0").decode()
        assert str(int(number)) == number  # to the right, and without zeros before
        words = translation.spelled(int(number)).encode()
        assert bytes(before).startswith(b"\n" + words)
        assert bytes(after).rstrip(b"\0") == words + b"\n"
        lengths.add(len(number))
    assert lengths == set(range(1, translation.DIGITS + 1))


def test_what_is_written_by_a_state_is_what_one_pass_finds_likeliest(model):
    model, given = model
    digits = given["x"][0]
    made = model.translate(digits)
    text = np.zeros((8, translation.LENGTH), np.uint8)
    text[:, 0] = translation.START
    text[:, 1 : made.shape[1]] = made[:, :-1]
    likeliest = model([digits, text]).numpy().argmax(-1)[:, : made.shape[1]]
    is_written = made != translation.PADDING
    np.testing.assert_array_equal(made[is_written], likeliest[is_written])
    # and a text that was written is an exact match, but with another byte is none
    logits = np.eye(128)[made]
    assert translation.exact_match(made, logits).numpy().tolist() == [1.0] * 8
    logits[2, 0] = np.roll(logits[2, 0], 1)
    expected = [1.0] * 8
    expected[2] = 0.0
    assert translation.exact_match(made, logits).numpy().tolist() == expected


def test_the_control_sees_no_digits(model, monkeypatch):
    model, given = model
    digits, text = given["x"]
    other = np.roll(digits, 1, axis=0)
    assert np.abs(model([digits, text]) - model([other, text])).max() > 1e-2
    monkeypatch.setattr(model, "sees_digits", False)
    np.testing.assert_array_equal(model([digits, text]), model([other, text]))


@pytest.mark.slow
def test_it_trains_writes_and_draws(monkeypatch, capsys, eagerly):
    # one of three, as each takes time; a window that is shorter than these texts
    options = {"options": {**translation.FEATURES, "window": 4}, "color": "black"}
    monkeypatch.setattr(translation, "ROWS", {"Performer": options})
    small = {"DIGITS": 1, "LENGTH": 8, "BATCH": 4, "EVALUATIONS": 1}
    for name, value in small.items():
        monkeypatch.setattr(translation, name, value)
    curves, written = translation.main(steps=2, output_dir="out")
    assert len(curves["Performer"]) == 1 and 0 <= curves["Performer"][-1] < 0.2
    printed = capsys.readouterr().out
    assert len(written) > 3
    for number, text in written.items():
        assert f"{number} {text}\n" in printed
    picture = np.asarray(Image.open("out/curves.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
