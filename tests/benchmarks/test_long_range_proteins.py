"""Proteins that resemble each other are in one part; targets are the next residues."""

import zipfile

import numpy as np
import pytest

from benchmarks.long_range import proteins


def made_up(count, seed=0):
    random = np.random.default_rng(seed)
    letters = np.array(list(proteins.RESIDUES))
    sizes = random.integers(20, 90, size=count)
    return ["".join(letters[random.integers(20, size=size)]) for size in sizes]


def test_sequences_of_a_file():
    text = ">first > one\nACD\nEFG\n>second\nHI*\n>empty\n\n>last\nK"
    assert proteins.read_fasta(text) == ["ACDEFG", "HI*", "", "K"]


def test_proteins_that_share_ten_residues_are_a_group():
    a, b, c, d, e = (made_up(1, seed)[0] for seed in range(5))
    like_a = b + a[3:13]
    like_that = b[:10] + c  # nothing of a in it
    nearly = d + e[5:14]  # nine of e
    given = [a, like_a, like_that, d, e, nearly]
    groups = proteins.groups_of(given)
    assert groups[0] == groups[1] == groups[2]
    assert groups[3] == groups[5]  # all of d is in it
    assert len({groups[0], groups[3], groups[4]}) == 3
    # no two pieces have one number
    assert len(set(proteins.groups_of(["CSEFGHIKLM", "DCEFGHIKLM"]))) == 2
    # the end of one and the beginning of the next are no piece
    assert len(set(proteins.groups_of([a[:15], a[15:], a[10:20]]))) == 3
    assert len(set(proteins.groups_of(["ACDEFGHIKL", "ACDEFGHIKL*", "ACDEFGHI"]))) == 2


def test_no_piece_is_in_both_parts_and_each_protein_in_one():
    given = made_up(200)
    given += [x[:9] + y[5:16] for x, y in zip(given[:90], given[90:180])] + given[:7]
    parts = proteins.split(given)
    assert sorted(parts["training"] + parts["held out"]) == sorted(set(given))
    pieces = [
        {x[i : i + 10] for x in parts[part] for i in range(len(x) - 9)}
        for part in ("training", "held out")
    ]
    assert not pieces[0] & pieces[1]
    assert 5 < len(parts["held out"]) < 60
    assert proteins.split(given[::-1]) == parts


@pytest.fixture
def folder(tmp_path):
    """A folder with a small wheel in it, so that nothing is downloaded."""
    name = f"{proteins.PACKAGE}-{proteins.VERSION}-py3-none-any.whl"
    given = made_up(120)
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        for index, genome in enumerate(proteins.GENOMES):
            text = "".join(f">x{i}\n{x}\n" for i, x in enumerate(given[index::6]))
            wheel.writestr(f"{proteins.INSIDE}/{genome}.faa", text)
    return tmp_path, given


def test_all_genomes_are_read_and_each_protein_follows_a_separator(folder):
    path, given = folder
    found = []
    for tokens in proteins.read_proteins(path).values():
        letters = "".join(("-" + proteins.RESIDUES + "X")[token] for token in tokens)
        assert letters.startswith("-")
        found += letters[1:].split("-")
    assert sorted(found) == sorted(given)


def test_rare_letters_are_one_token():
    tokens = proteins.tokens_of(["AUX*Y"])
    assert tokens.tolist() == [0, 1, 21, 21, 21, 20]
    assert proteins.VOCABULARY_SIZE == 22 and tokens.dtype == np.int32


def test_targets_are_the_next_residues_of_the_part(folder, monkeypatch):
    parts = proteins.read_proteins(folder[0])
    monkeypatch.setattr(proteins, "read_proteins", lambda: parts)
    for part, text in parts.items():
        random = np.random.default_rng(0)
        x, y, w = proteins.draw_proteins(part, 50, random, 400)
        assert x.shape == y.shape == w.shape == (400, 50) and w.all()
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        cuts = {text[i : i + 51].tobytes() for i in range(len(text) - 50)}
        drawn = {np.append(row, last).tobytes() for row, last in zip(x, y[:, -1])}
        assert drawn <= cuts and len(drawn) > 100
    # the last residue is a target too
    x, y, _ = proteins.draw_proteins(part, len(text) - 1, random, 1)
    assert [x[0, -1], y[0, -1]] == text[-2:].tolist()
