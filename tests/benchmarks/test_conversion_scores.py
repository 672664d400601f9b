"""Losses of masked tokens, what a row is fitted to, and the table."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.conversion import __main__ as command
from benchmarks.conversion import antiberty, bert, masking, report, rows, scores
from benchmarks.conversion.pretrained import Pretrained

MASK = 4


class Constant:
    """Gives all tokens the same logits."""

    layers = ()

    def __init__(self, logits):
        self.logits = np.array(logits, np.float32)

    def __call__(self, tokens, training):
        assert training is False
        return tf.constant(np.tile(self.logits, (*tokens.shape, 1)))


def long_sequences():
    """Two that are alike, one that is not."""
    random = np.random.default_rng(0)
    first, other = random.integers(5, 25, (2, 61)).tolist()
    return [first, first[:30] + first[32:], other]


def source(sequences, exact_nll=None):
    config = bert.Config(25, 70, 8, 8, 8, num_layers=1, num_heads=2)
    return Pretrained("tiny 1.0", config, {}, {}, sequences, MASK, exact_nll)


def test_each_token_but_the_ends_is_hidden_in_one_copy():
    [tokens, _, _] = long_sequences()
    given = masking.examples([tokens], MASK, seed=1)
    assert given.inputs.shape == (4, 61)
    assert given.masked.sum(0).tolist() == [0, *[1] * 59, 0]
    assert set(given.masked.sum(1)) == {14, 15}
    assert (given.inputs[given.masked] == MASK).all()
    np.testing.assert_array_equal(given.targets, [tokens] * 4)
    np.testing.assert_array_equal(
        given.inputs[~given.masked], given.targets[~given.masked]
    )
    # of a longer one six copies of eight
    given = masking.examples([tokens + tokens[1:]], MASK, seed=1)
    assert given.inputs.shape == (6, 121) and given.masked.sum(0).max() == 1


def test_sequences_that_have_much_in_common_are_one_family():
    first, alike, other = long_sequences()
    assert masking.families([first, other, alike, other]).tolist() == [0, 1, 0, 1]
    # by way of a third one, too
    half = alike[:20] + other[20:30] + alike[30:]
    chain = [first, half[:15] + other[:9] + half[24:], half]
    assert masking.families(chain[::2]).tolist() == [0, 0]
    assert len(set(masking.families(chain))) == 1


def test_losses_are_those_of_the_hidden_tokens():
    probabilities = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    with np.errstate(divide="ignore"):
        model = Constant(np.log(probabilities) + 3)
    targets = np.array([[1, 2, 3, 3], [2, 2, 3, 0]])
    inputs = np.array([[1, 4, 3, 4], [4, 2, 3, 0]])
    given = masking.Examples(inputs, targets, inputs != targets, np.array([5, 6]))
    expected = -np.log([0.2, 0.3, 0.2])
    np.testing.assert_allclose(masking.losses(model, given), expected, rtol=1e-6)
    assert given.families_of_tokens().tolist() == [5, 5, 6]
    assert given[given.families == 6].inputs.tolist() == [[4, 2, 3, 0]]


def test_standard_errors_count_clusters_not_tokens():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    # each by itself: the usual one, of deviations -2, -1, 0, 3
    alone = scores.standard_error(values, np.arange(4))
    assert math.isclose(alone, math.sqrt(14 / 3 / 4))
    # sums of deviations -3 and 3
    pairs = scores.standard_error(values, np.array([7, 7, 2, 2]))
    assert math.isclose(pairs, math.sqrt(2 * 18) / 4)
    assert scores.standard_error(values, np.zeros(4)) == math.inf


def test_rows_are_fitted_to_other_families():
    sequences = long_sequences()
    seen = []

    def fit(model, source, tokens):
        assert model == f"that of {source.name}"
        seen.append(tokens)
        return Constant(np.eye(25)[0] * len(seen))

    row = rows.Row("fitted", lambda source: f"that of {source.name}", fit=fit)
    given = masking.examples(sequences, MASK, scores.SEED)
    model = source(sequences)
    parts = {
        family: scores.losses_of(row, row.make(model), model, given, 1, family)
        for family in scores.parts_of(row, model)
    }
    losses = scores.joined(parts, given)
    # the first family has two sequences: fitted to the third, and the reverse
    assert [tokens.shape for tokens in seen] == [(5, 61), (10, 61)]
    assert (seen[0][0] == sequences[2]).all()
    assert not any((tokens == sequences[2]).all() for tokens in seen[1])
    ends = [tokens[0] for tokens in seen[1]]
    assert ends == [sequences[0][0]] * 10
    of_models = np.log(np.exp([1, 2]) + 24)
    expected = of_models[(given.families_of_tokens() == 1).astype(int)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_rows_of_more_data_are_fitted_to_it_without_what_is_asked():
    sequences = long_sequences()
    random = np.random.default_rng(1)
    new = random.integers(5, 25, 50).tolist()
    alike = sequences[2][:40] + sequences[2][41:]
    seen = []

    def fit(model, source, tokens):
        seen.append(tokens)
        return Constant(np.zeros(25))

    row = rows.Row("fitted", lambda source: None, fit=fit, further=True)
    given = masking.examples(sequences, MASK, scores.SEED)
    model = source(sequences)
    assert scores.parts_of(row, model) == []
    model = dataclasses.replace(model, further=lambda: [new, alike])
    for family in scores.parts_of(row, model):
        scores.losses_of(row, row.make(model), model, given, 1, family)
    # each sequence stands first as it is, then with masks
    starts = [[x[:20].tolist() for x in tokens[:4]] for tokens in seen]
    assert starts[0][:3] == [sequences[2][:20], new[:20], alike[:20]]
    assert starts[1][:3] == [sequences[0][:20], sequences[1][:20], new[:20]]
    assert alike[:20] not in starts[1]


def test_what_a_row_loses_is_paired_with_the_exact_model():
    exact, families = np.array([1.0, 2.0, 3.0]), np.arange(3)
    found = scores.score("same", exact + 0.5, exact, families, 7.0)
    assert found == scores.Score("same", 2.5, 0.5, 0.0, 7.0)
    mixed = scores.score("mixed", exact[::-1], exact, families, 7.0)
    assert (mixed.nll, mixed.lost) == (2.0, 0.0)
    # of differences 2, 0, -2
    assert math.isclose(mixed.standard_error, 2 / math.sqrt(3))


def test_the_exact_model_is_checked():
    scores.check_exact(source([], 0.25), 0.2509)
    scores.check_exact(source([]), 17.0)
    with pytest.raises(ValueError, match=r"must score 0\.250 .* Received: 0\.252"):
        scores.check_exact(source([], 0.25), 0.252)


def test_random_features_are_drawn_anew(monkeypatch):
    config = bert.Config(25, 70, 8, 8, 8, num_layers=1, num_heads=2)
    favor = next(row for row in rows.FURTHER if row.name == "favor+")
    monkeypatch.setattr(
        Pretrained,
        "model",
        lambda source: bert.make_model(source.config),
    )
    made = Pretrained("tiny", config, {}, {}, [[5, 6, 7, 8, 9]], MASK)
    given = masking.examples(made.sequences, MASK, scores.SEED)
    model = favor.make(made)
    losses = [masking.losses(model, given)]
    scores.redraw(model)
    losses.append(masking.losses(model, given))
    assert np.abs(losses[0] - losses[1]).min() > 1e-6
    again = favor.make(made)
    again.set_weights(model.get_weights())
    # of what was drawn last and what comes next
    mean = scores.mean_losses(again, given, num_draws=2)
    scores.redraw(model)
    losses.append(masking.losses(model, given))
    np.testing.assert_allclose(mean, (losses[1] + losses[2]) / 2, rtol=1e-5)


def test_the_table_says_what_was_found():
    found = [
        scores.Score("exact", 0.25, 0.0, 0.0, 4.0),
        scores.Score("window alone", 0.8781, 0.6309, 0.0523, 12.4),
        scores.Score("both calibrated", 0.2449, -0.0051, 0.01, 30.0),
    ]
    text = report.section(source(long_sequences()), found, num_draws=3)
    assert "## tiny 1.0" in text and "1 layers of 2 heads of 4" in text
    assert "175 masked tokens of 3 sequences of 59 to 61 tokens" in text
    assert "of which 2 have little in common" in text and "means: 3." in text
    cells = [line.strip("| ").split(" | ") for line in text.splitlines()]
    assert ["window alone", "0.878", "+0.631", "0.052", "12"] in cells
    assert ["both calibrated", "0.245", "-0.005", "0.010", "30"] in cells
    page = report.page([text, "second"], 75.4)
    assert page.endswith("second") and "75 s" in page and "16 places" in page


@pytest.fixture
def constant_models(monkeypatch):
    monkeypatch.setattr(antiberty, "load", lambda folder: source(long_sequences()))
    monkeypatch.setattr(Pretrained, "model", lambda source: Constant(np.zeros(25)))


def test_the_command_writes_the_tables(constant_models, tmp_path, capsys):
    folder = tmp_path / "new"
    arguments = ["--models", "antiberty", "--rows", "mean of V", "--workers", "0"]
    command.main([*arguments, "--output", str(folder)])
    text = (folder / "tables.md").read_text()
    assert "| exact | 3.219 | +0.000 |" in text
    assert "| mean of V | 3.219 | +0.000 |" in text and "window alone" not in text
    assert capsys.readouterr().out.endswith(text)


def test_a_model_that_was_read_wrongly_ends_the_command(
    constant_models, tmp_path, monkeypatch
):
    made = source(long_sequences(), 0.5)
    monkeypatch.setattr(antiberty, "load", lambda folder: made)
    arguments = ["--models", "antiberty", "--workers", "0", "--output", str(tmp_path)]
    with pytest.raises(ValueError, match="weights or tokens were read wrongly"):
        command.main(arguments)
