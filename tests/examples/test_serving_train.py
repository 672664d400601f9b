"""Served models are trained on data whose tokens are described."""

import numpy as np
import pytest

from examples import digits, text
from examples.serving import train, vocabulary


class Learner:
    """Keeps what it is trained on."""

    def fit(self, inputs, targets, **options):
        self.inputs, self.targets = inputs, targets

    def export(self, folder, verbose):
        self.folder = folder


@pytest.fixture
def learner(monkeypatch):
    learner = Learner()
    for example in (text, digits):
        monkeypatch.setattr(example, "make_model", lambda *args, **options: learner)
    return learner


def test_bytes_of_the_standard_library_are_text(learner):
    train.train_text(steps=3, length=20, folder="a")
    assert learner.inputs.shape == learner.targets.shape == (6, 20)
    sources, _ = text.read_sources()
    for inputs, targets in zip(learner.inputs, learner.targets):
        window = bytes(inputs[:1]) + bytes(targets)
        assert bytes(inputs) == window[:-1] and window in bytes(sources)
    assert learner.folder == "a"
    assert vocabulary.read("a") == vocabulary.Text()


def test_digits_are_pixels_from_paper_to_ink(learner, monkeypatch):
    made_up = np.tile(np.linspace(0, 255, 784), (40, 1)), np.zeros(40)
    monkeypatch.setattr(digits, "mnist_data", lambda: made_up)
    train.train_digits(steps=2, folder="b")
    assert learner.inputs.shape == learner.targets.shape == (64, 196)
    assert (learner.inputs[:, 0] == 8).all() and learner.targets.max() == 7
    np.testing.assert_array_equal(learner.inputs[:, 1:], learner.targets[:, :-1])
    found = vocabulary.read("b")
    assert (found.width, found.height, found.start, found.max_length) == (
        14,
        14,
        [8],
        197,
    )
    # seven steps from white to the black of the example's picture
    greys = [int(color[1:3], 16) for color in found.palette]
    np.testing.assert_allclose(greys, np.linspace(255, 0x1A, 8), atol=0.5)
    assert all(
        color == f"#{grey:02x}{grey:02x}{grey:02x}"
        for color, grey in zip(found.palette, greys)
    )


def test_ids_are_all_that_is_known_without_a_file(tmp_path):
    assert vocabulary.read(tmp_path) == vocabulary.Tokens()
    vocabulary.write(tmp_path, vocabulary.Pixels(width=1, height=1, palette=[]))
    path = tmp_path / vocabulary.FILE
    path.write_text(path.read_text().replace("pixels", "sounds"))
    with pytest.raises(ValueError, match="sounds"):
        vocabulary.read(tmp_path)


def test_tokens_that_a_model_has_not_can_mean_nothing():
    vocabulary.check(vocabulary.Text(start=[255]), 256)
    with pytest.raises(ValueError, match="256 bytes.*Received: a vocabulary of 13"):
        vocabulary.check(vocabulary.Text(), 13)
    with pytest.raises(ValueError, match="at least 0 and less than 13. Received: 13"):
        vocabulary.check(vocabulary.Tokens(start=[12, 13]), 13)
