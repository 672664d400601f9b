"""Genomes, repeats, needles and packages are what they say; scripts run and report."""

import argparse
import asyncio
import dataclasses
import gzip
import hashlib
import json
import lzma
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.learning import models, tasks, training
from benchmarks.long_data import (
    documents,
    fasta,
    genomes,
    needles,
    report,
    runner,
    sources,
    strains,
)

LETTERS = np.array([*fasta.BASES])


def ids(letters):
    return np.array([fasta.BASES.index(letter) for letter in letters], np.uint8)


def random_bases(seed, length):
    return np.random.default_rng(seed).integers(4, size=length).astype(np.uint8)


def test_fasta_files_of_all_kinds_are_read(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "one.fa").write_text(
        ">first one\nACG\nTn\n>second > of two\r\nacgR\r\n"
    )
    with gzip.open(tmp_path / "below/two.fasta.gz", "wt") as file:
        file.write("\n>only\nGATTACA")
    with lzma.open(tmp_path / "three.fna.xz", "wt") as file:
        file.write(">only\nTT\n\nTT\n")
    (tmp_path / "other.txt").write_text("ACGT")
    found = fasta.read_folder(tmp_path)
    read = {name: "".join(LETTERS[bases]) for name, bases in found.items()}
    assert read == {
        "below/two.fasta.gz": "GATTACA",
        "one.fa": "ACGTNNACGN",
        "three.fna.xz": "TTTT",
    }


def test_no_fasta_says_what_is_wanted(tmp_path):
    with pytest.raises(ValueError, match=r"\.fasta\.gz.*Received: folder=.*none"):
        fasta.read_folder(tmp_path)
    (tmp_path / "a.fa").write_text("ACGT\n>late\nACGT\n")
    with pytest.raises(ValueError, match=r"begin with '>'.*a.fa.*b'ACGT'"):
        fasta.read_folder(tmp_path)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 12, 24, 31])
def test_kmers_are_numbers_in_base_four(k):
    bases = np.random.default_rng(k).choice(5, size=(3, 150), p=[0.24] * 4 + [0.04])
    for row, codes in zip(bases, fasta.kmers(bases, k), strict=True):
        for end, code in enumerate(codes, start=1):
            last = row[max(0, end - k) : end]
            known = len(last) == k and fasta.UNKNOWN not in last
            assert code == (int("".join(map(str, last)), 4) if known else -1)


def slowly_in_repeats(row, k, window):
    """By words, from the nearest to the farthest."""
    found = []
    for end in range(1, len(row) + 1):
        word = "".join(LETTERS[row[max(0, end - k) : end]])
        earlier = [
            other
            for other in range(k, end)
            if "".join(LETTERS[row[other - k : other]]) == word and "N" not in word
        ]
        # the base after the last of them is at index max(earlier), seen from end - 1
        far = bool(earlier) and end - 1 - max(earlier) >= window
        found.append(far and len(word) == k)
    return found


def test_repeats_are_found_beyond_the_window():
    letters = "ACGTTTGCAACGTCACGNACGN"
    #          after the second ACG, at 11, T stands 8 tokens back; after the third, at
    #          16, the nearest T is at 12; ACG after N is at 20, its copy at 17 is N
    found = fasta.in_repeats(ids(letters)[np.newaxis], 3, window=4)
    assert [*np.flatnonzero(found[0])] == [11, 12, 16]
    found = fasta.in_repeats(ids(letters)[np.newaxis], 3, window=5)
    assert [*np.flatnonzero(found[0])] == [11, 12]
    rows = np.random.default_rng(0).choice(5, size=(8, 120), p=[0.24] * 4 + [0.04])
    for k, window in ((2, 1), (2, 7), (3, 30)):
        found = fasta.in_repeats(rows, k, window)
        assert 0.02 < found.mean() < 0.95
        np.testing.assert_array_equal(
            found, [slowly_in_repeats(row, k, window) for row in rows]
        )


@pytest.fixture
def folder(tmp_path):
    """Two species of two strains each, and a third strain of the first."""
    for species in range(2):
        first = random_bases(species, 20_000)
        for strain in range(3 - species):
            # one base of 100 differs, and the strain begins elsewhere
            bases = np.roll(first, 777 * strain)
            places = np.random.default_rng(strain).integers(20_000, size=200 * strain)
            bases[places] = (bases[places] + 1) % 4
            text = "".join(LETTERS[bases])
            (tmp_path / f"{species}_{strain}.fa").write_text(f">one\n{text}\n")
    return tmp_path


def test_the_last_strain_copies_what_its_relatives_had(folder):
    text = {
        name: "".join(LETTERS[bases])
        for name, bases in fasta.read_folder(folder).items()
    }
    for part in "training", "held out":
        random = np.random.default_rng(0)
        x, y, w = strains.draw(str(folder), "0_2", part, 2000, random, 12)
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        assert x.shape == (12, 2000)
        seen = set()
        for inputs, target, weights in zip(x, y[:, -1], w, strict=True):
            letters = "".join(LETTERS[[*inputs, target]])
            pieces = letters.removeprefix("N").rstrip("N").split("N")
            size = len(pieces[0])
            assert all(len(piece) == size for piece in pieces[:-1])
            owners = [
                {name for name in text if piece in text[name]} for piece in pieces
            ]
            if part == "training":
                assert weights.all() and {"0_2.fa"} not in owners
                own = len(pieces) - 1
            else:
                begins = np.argmax(weights)
                assert weights[begins:].all() and begins % (size + 1) == 0
                own = begins // (size + 1)
                assert not any(of <= {"0_2.fa"} for of in owners[:own])
                assert all("0_2.fa" in of for of in owners[own:])
            # of one species; regions of the last strain are regions of the others
            assert len({name[0] for of in owners for name in of}) == 1
            starts = [piece[: strains.ANCHOR] for piece in pieces]
            assert 0 < own < len(pieces) and {*starts[own:-1]} <= {*starts[:own]}
            seen |= set.union(*owners)
        assert seen == (
            {*text} if part == "training" else {"0_0.fa", "0_1.fa", "0_2.fa"}
        )
        # copies are found, but for 24 bases at the start and after differences
        assert 0.2 < fasta.in_repeats(x, 24, 64).mean() < 0.7
    for wrong in ("5_5", "1_", ""):
        with pytest.raises(ValueError, match=f"held_out='{wrong}'.*0_2.fa.*relatives"):
            strains.read_strains(str(folder), wrong)


def test_addresses_are_alike_where_the_last_bases_are():
    layer = genomes.BasesBefore(5, 8)
    layer.build((None, None))
    x = random_bases(0, 64)[np.newaxis].astype(np.int32)
    x[0, 40:52] = x[0, 20:32]
    numbers = layer.last(tf.constant(x), 12).numpy()[0]
    padded = [fasta.UNKNOWN] * 11 + x[0].tolist()
    assert numbers.tolist() == [
        int("".join(map(str, padded[end : end + 12])), 5) for end in range(64)
    ]
    signs = layer.signs(layer.last(tf.constant(x), 12)).numpy()[0]
    alike = signs @ signs.T / genomes.SIGNS
    assert alike[51, 31] == 1 and np.abs(signs).min() == 1
    others = alike[np.triu_indices(64, 1)]
    assert (others == 1).sum() == 1
    # as products of random signs: 0 on average, with a spread of 1 / sqrt(32)
    assert abs(others.mean()) < 0.03 and abs(others.std() - 0.18) < 0.03
    # a token has the address of the bases up to it, and that of those before it
    for table in layer.own.embeddings, layer.few.embeddings:
        table.assign(tf.zeros_like(table))
    layer.here.kernel.assign(tf.zeros_like(layer.here.kernel))
    np.testing.assert_allclose(
        layer(x)[0, 1:], signs[:-1] @ layer.before.kernel.numpy(), rtol=1e-5, atol=1e-6
    )


def test_needles_stand_in_sources():
    one, several = needles.make_tasks(512, None)
    for task, count in ((one, 1), (several, 8)):
        parts = tasks.read_sources()
        for part, (x, y, w) in (
            ("training", task.draw(np.random.default_rng(0), 4)),
            ("held out", task.held_out()[0]),
        ):
            for inputs, targets, weights in zip(x, y, w, strict=True):
                told = inputs[:-64]
                places = np.flatnonzero(told >= tasks.BYTES)
                assert len(places) == 2 * count
                pairs = dict(zip(told[places[::2]], told[places[1::2]], strict=True))
                assert [pairs[key] for key in inputs[-64:]] == targets[-64:].tolist()
                assert weights[-64:].all() and not weights[:-64].any()
                pieces = np.split(told, np.unique([*places, *places + 1]))
                for piece in pieces:
                    if (piece < tasks.BYTES).all():
                        assert bytes(piece.astype(np.uint8)) in parts[part].tobytes()
        assert x.max() < task.vocabulary_size
    assert one.name == "needle 512 in text, 1 key" != several.name


def test_sequences_longer_than_a_batch_are_measured_one_by_one():
    (task, _) = needles.make_tasks(16384, None)
    batches = task.held_out()
    assert len(batches) == 64 and batches[0][0].shape == (1, 16384)


def test_packages_are_held_out_as_wholes():
    by_file, by_package = tasks.read_sources(), tasks.read_sources(by_package=True)
    assert sum(map(len, by_file.values())) == sum(map(len, by_package.values()))
    texts = [path.read_bytes() for path in sorted(PACKAGE.glob("*.py"))]
    assert len(texts) > 5
    for text in texts:
        assert [part for part in by_package if text in by_package[part].tobytes()] == [
            tasks_part(PACKAGE.name)
        ]
    # every position is in one part, and in all
    (task,) = sources.make_tasks(256, None)
    for _, _, weights in task.held_out():
        np.testing.assert_array_equal(weights[0], weights[1:].sum(0))
        assert (weights.sum(-1)[:, 0] == [256, 32, 32, 64, 128]).all()
    assert task.parts[1:] == ("0 to 32", "32 to 64", "64 to 128", "128 to 256")


def tasks_part(name):
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return "training" if digest[0] % 20 else "held out"


PACKAGE = pathlib.Path(asyncio.__file__).parent


def test_documents_ask_at_the_end():
    (task,) = documents.make_tasks(256, None)
    words = {index: word for word, index in documents.library().ids.items()}
    for x, y, w in (task.draw(np.random.default_rng(0), 6), task.held_out()[0]):
        for inputs, targets, weights in zip(x, y, w, strict=True):
            told = [words[token] for token in inputs[:-16]]
            there = {name: told[told.index(name) + 1] for name in documents.NAMES}
            assert set(there.values()) <= {*documents.PLACES}
            questions = [words[token] for token in inputs[-16:]]
            assert questions[1::2] == 8 * ["?"]
            asked = weights > 0
            assert [*np.flatnonzero(asked)] == [*range(241, 256, 2)]
            answers = [words[token] for token in targets[asked]]
            assert answers == [there[name] for name in questions[::2]]


def test_parts_are_measured_apart():
    random = np.random.default_rng(0)
    logits = random.normal(size=(7, 7)).astype(np.float32)
    x, y = random.integers(7, size=(2, 4, 3, 16))
    w = (random.random((4, 2, 3, 16)) < 0.4).astype(np.float32)
    (task,) = sources.make_tasks(256, None)
    task = dataclasses.replace(
        task, parts=("a", "b"), held_out=lambda: [*zip(x, y.astype(np.int32), w)]
    )
    found = training.measuring(lambda inputs: tf.gather(logits, inputs), task)()
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    bits = -np.log2(chances[x, y])
    expected = [bits[w[:, part] > 0].mean() for part in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    right = dataclasses.replace(task, measure="accuracy")
    found = training.measuring(lambda inputs: tf.gather(logits, inputs), right)()
    expected = [(logits[x].argmax(-1) == y)[w[:, part] > 0].mean() for part in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_long_gate_forgets_as_slowly_as_the_length_asks():
    (task,) = documents.make_tasks(256, None)
    for length, last in ((256, 7.0), (4096, np.log(4 * 4096))):
        task = dataclasses.replace(task, length=length)
        layer = models.attention_of("window + softmax, long gate", task, 4, 16)
        layer.build((1, length, 64))
        bias = layer.forget_gate_layer.bias.numpy()
        np.testing.assert_allclose(bias, np.linspace(2, last, 4), rtol=1e-6)


@pytest.mark.parametrize(
    ("script", "name", "columns"),
    [
        (genomes, "genomes 512", 3),
        (needles, "needle 512 in text, 1 key", 1),
        (sources, "packages 512", 5),
        (documents, "documents 512", 1),
    ],
)
@pytest.mark.slow
def test_the_scripts(script, name, columns, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TOKENS_AT_ONCE", 1024)
    monkeypatch.setattr(tasks, "fixed", lambda draw, *_: tasks.same_batches(draw, 4, 2))
    flags = ["--lengths", "512", "--steps", "2", "--workers", "0", "--rows"]
    flags += [models.WITHOUT, models.WINDOW, "--output", str(tmp_path / "out")]
    if script is genomes:
        flags += ["--fasta", str(folder), "--held-out", "0_2"]
    script.main(flags)
    lines = (tmp_path / "out/runs.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["task"] == name]
    assert [run["row"] for run in runs] == [models.WITHOUT, models.WINDOW]
    for run in runs:
        assert [point[0] for point in run["curve"]] == [1, 2]
        values = np.array([point[2:] for point in run["curve"]])
        assert values.shape == (2, 1 + columns) and np.isfinite(values).all()
        # nothing is learned of so many symbols in two steps
        if run["measure"] == "bits":
            assert (values < 1.5 * np.log2(256)).all() and (values > 1.5).all()
        result = f"| {run['row']} | {run['result']:.3f} | "
        assert result in (tmp_path / "out/tables.md").read_text()


def test_tables_by_hand(tmp_path):
    def run(row, values, seed, seconds):
        middle = [value + 1 for value in values]
        return {
            **{"task": "genomes 512", "measure": "bits", "row": row, "key_dim": 16},
            **{"seed": seed, "learning_rate": 1e-3, "steps": 100, "window": 64},
            **{"parameters": 1234, "state": 4096, "result": values[0], "threads": 1},
            **{"seconds_in_all": 1800.0, "machine": "one", "tensorflow": "2.21.0"},
            "parts": ["inside", "outside"],
            "curve": [[50, seconds / 2, 3.0, *middle], [100, seconds, 2.0, *values]],
        }

    runs = [
        run(models.WITHOUT, [2.0, 2.0], 0, 1.0),
        run(models.WINDOW, [1.9, 1.95], 0, 10.0),
        run(models.WINDOW, [1.8, 1.95], 1, 10.0),
        run(models.EXACT, [0.5, 1.9], 0, 20.0),
        run(models.EXACT, [0.6, 1.9], 1, 20.0),
    ]
    lines = report.write(runs, tmp_path).splitlines()
    header = next(line for line in lines if line.startswith("| attention"))
    assert "| inside | after 10 s | outside | after 10 s | minus window |" in header
    # exact attention is measured halfway then
    expected = (
        "0.550 | 1.550 | 1.900 | 2.900 | -1.300 ± 0.100 | 2 | 200 | 4,096 | 1,234"
    )
    assert f"| {models.EXACT} | {expected} |" in lines
    assert (
        f"| {models.WITHOUT} | 2.000 | 2.000 | 2.000 | 2.000 | +0.100 | 1"
        in "".join(lines)
    )
    assert "5 runs, seeds 0, 1, on one, with TensorFlow 2.21.0; 2.5" in "\n".join(lines)
    assert report.write([], tmp_path) == "# Long real data\n\nNo runs."


def test_exact_attention_is_left_out_where_it_takes_too_long():
    def rows(length):
        options = argparse.Namespace(
            quick=False, full=True, rows=None, seeds=None, steps=7
        )
        wanted = runner.plan(needles.make_tasks(length, None), options)
        assert {(run["steps"], run["seed"]) for run in wanted} == {
            (7, seed) for seed in (0, 1, 2)
        }
        return {run["row"] for run in wanted}

    assert rows(4096) == {*runner.ROWS}
    assert rows(8192) == {*runner.ROWS} - {"exact", "exact, long gate"}
