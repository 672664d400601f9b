"""The example `music`, with made-up scores."""

import pathlib

import numpy as np
import pytest
from music21 import chord, converter, instrument, note, stream, tie

from examples import music

NOTES = np.array(
    [[0, 0, 72, 24], [0, 2, 48, 96], [12, 1, 60, 8], [20, 1, 62, 8], [48, 0, 71, 192]]
)


def test_notes_of_a_score_are_in_order_and_tied_ones_are_one():
    first, second = note.Note("C5", quarterLength=1), note.Note("C5", quarterLength=0.5)
    first.tie, second.tie = tie.Tie("start"), tie.Tie("stop")
    grace, third = note.Note("D5").getGrace(), note.Note("A3", quarterLength=1 / 3)
    score = stream.Score()
    for notes in (
        [(0, note.Rest(quarterLength=1)), (1, first), (2, second), (2.5, grace)],
        [(0, chord.Chord(["G3", "E3"], quarterLength=2)), (2, third)],
    ):
        part = stream.Part()
        for begin, what in notes:
            part.insert(begin, what)
        score.insert(0, part)
    expected = [[0, 1, 52, 48], [0, 1, 55, 48], [24, 0, 72, 36], [48, 1, 57, 8]]
    np.testing.assert_array_equal(music.notes_in(score), expected)


def test_tokens_are_notes_and_back():
    tokens = music.tokens_of(NOTES)
    assert tokens[:8].tolist() == [0, 97, 101 + 72, 229 + 24, 0, 99, 101 + 48, 229 + 96]
    np.testing.assert_array_equal(music.notes_of(tokens), NOTES)
    late = np.concatenate([NOTES[:-1], [[520, 0, 71, 500]]])
    cut = music.notes_of(music.tokens_of(late))
    assert cut[-1].tolist() == [20 + 96, 0, 71, 192]
    tokens[6] = 0  # a waiting time in place of the pitch of the second note
    np.testing.assert_array_equal(music.notes_of(tokens), NOTES[[0, 2, 3, 4]])


def test_sequences_are_pieces_in_another_key():
    random = np.random.default_rng(0)
    fields = random.integers(0, [97, 4, 60, 193], (100, 4)) + [0, 0, 30, 0]
    tokens = (fields + music.FIRST).ravel()
    sequences = music.random_sequences(tokens, 50, 40).reshape(50, 10, 4)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 40)[::4]
    windows = windows.reshape(-1, 10, 4)
    keys = set()
    for sequence in sequences:
        difference = sequence - windows
        same = (difference[..., [0, 1, 3]] == 0).all((1, 2))
        (moved,) = np.unique(difference[same][..., 2])  # one difference for all notes
        keys.add(moved)
    assert keys == set(range(-6, 6))


def test_midi_has_the_notes(tmp_path):
    music.write_midi(tmp_path / "notes.mid", NOTES)
    score = converter.parse(tmp_path / "notes.mid", quantizePost=False)
    sounds = sorted(
        [24 * x.offset, x.pitch.midi, 24 * x.quarterLength]
        for part in score.parts
        for x in part.stripTies().flatten().notes
    )
    assert sounds == sorted(NOTES[:, [0, 2, 3]].tolist())
    instruments = score.recurse().getElementsByClass(instrument.Instrument)
    assert {type(x).__name__ for x in instruments} == {
        music.INSTRUMENTS[part] for part in NOTES[:, 1]
    }


@pytest.mark.slow
def test_a_held_out_piece_is_continued(
    monkeypatch, capsys, one_block, eagerly, assert_drawn
):
    monkeypatch.delitem(music.ATTENTIONS, "local attention")
    random = np.random.default_rng(0)
    pieces = []
    for size in random.integers(40, 80, 12):
        fields = random.integers(0, [9, 4, 40, 24], (size, 4)) + [0, 0, 40, 1]
        fields[:, 0] = fields[:, 0].cumsum()
        pieces.append(fields)
    pathlib.Path("out").mkdir()
    np.savez("out/notes.npz", **{str(i): piece for i, piece in enumerate(pieces)})
    bits, continued = music.main(steps=3, output_dir="out", length=80)
    assert bits["no attention"] != pytest.approx(bits["Performer"], abs=1e-3)
    # below the bits of uniform guesses; three steps teach the order of fields
    most = 4 * np.log2(music.VOCABULARY)
    assert all(most / 2 < x < most for x in bits.values())
    given = max(pieces[::8], key=len)[:4]
    given[:, 0] -= given[0, 0]
    np.testing.assert_array_equal(continued[:4], given)
    assert f"Performer: {bits['Performer']:.2f} bits per" in capsys.readouterr().out
    assert pathlib.Path("out/continued.mid").read_bytes().startswith(b"MThd")
    assert_drawn("out/continued.png")
