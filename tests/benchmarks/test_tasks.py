"""Tasks match their descriptions: questions, held-out data and repeats."""

import asyncio
import dataclasses
import functools
import gzip
import hashlib
import lzma
import pathlib
import statistics

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_sample_images

from benchmarks.learning import models, tasks, training
from benchmarks.long_data import documents, fasta, genomes, needles, sources
from benchmarks.long_data.strains import ANCHOR, draw, read_strains
from benchmarks.long_range import listops
from benchmarks.long_range import models as long_models
from benchmarks.long_range import tasks as long_tasks
from benchmarks.long_range import training as long_training

OPTIONS = dict(window=4, steps=3, batch_size=2, learning_rate=1e-3)
LONG = dict(steps=2, batch_size=4, hidden_dim=64, learning_rate=1e-3)
LETTERS = np.array([*fasta.BASES])


def some(task, batch_size=20):
    """Returns examples as tuples of inputs, targets and weights."""
    return zip(*task.draw(np.random.default_rng(0), batch_size), strict=True)


def test_recall_asks_for_the_values_of_keys():
    task = tasks.recall(64, 8, **OPTIONS)
    for inputs, targets, weights in some(task):
        pairs = dict(zip(inputs[0:16:2], inputs[1:16:2], strict=True))
        asked = weights > 0
        assert len(pairs) == 8 and inputs.max() < task.vocabulary_size
        assert asked[16:].mean() > 0.2 and not asked[:16].any()
        assert [pairs[key] for key in inputs[asked]] == targets[asked].tolist()
        assert not inputs[16:][~asked[16:]].any()


@pytest.mark.parametrize(
    "task, filler, count",
    [
        (tasks.needle(512, **OPTIONS), tasks.FILLER, 8),
        *(
            (task, tasks.BYTES, n)
            for task, n in zip(needles.make_tasks(512, 0), (1, 8))
        ),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_needles_are_asked_for_at_the_end(task, filler, count):
    held_out = zip(*task.held_out()[0], strict=True)
    for part, examples in (("training", some(task, 4)), ("held out", held_out)):
        for inputs, targets, weights in examples:
            told = inputs[:-64]
            places = np.flatnonzero(told >= filler)
            keys, values = told[places[::2]], told[places[1::2]]
            assert len(places) == 2 * count and (np.diff(places)[::2] == 1).all()
            pairs = dict(zip(keys, values, strict=True))
            assert [pairs[key] for key in inputs[-64:]] == targets[-64:].tolist()
            assert weights[-64:].all() and not weights[:-64].any()
            assert inputs.max() < task.vocabulary_size
            if filler == tasks.BYTES:  # from sources of that part
                for piece in np.split(told, np.unique([*places, *places + 1])):
                    if (piece < tasks.BYTES).all():
                        text = tasks.read_sources()[part].tobytes()
                        assert bytes(piece.astype(np.uint8)) in text


def test_training_begins_with_short_sequences(eagerly):
    for (task, *_), shortest in (
        (needles.make_tasks(4096, None), 256),
        (documents.make_tasks(4096, None), 256),
    ):
        random, stages = np.random.default_rng(0), task.stages(100)
        shapes = [draw(random, size)[0].shape for draw, size, _ in stages]
        lengths = [shortest, 4 * shortest, 16 * shortest]
        assert shapes == [(4096 // length, length) for length in lengths]
        assert [end for *_, end in stages] == [60, 80, 100]

    made = []

    def made_of(length, random, size):
        made.append((size, length))
        return (np.ones((size, length), np.int32),) * 2 + (
            np.ones((size, length), np.float32),
        )

    task = tasks.recall(32, 4, **OPTIONS)
    draws = [functools.partial(made_of, length) for length in (8, 32)]
    task = dataclasses.replace(task, draw=draws[1], shorter=((draws[0], 8, 0.5),))
    model = models.make_model(task, models.WITHOUT, 16, seed=0)
    training.learn(model, task, 1e-3, 4, 2, np.random.default_rng(0))
    assert made == [(8, 8), (8, 8), (2, 32), (2, 32)]


def test_packages_are_held_out_as_wholes():
    task = tasks.sources(64, **OPTIONS)
    for inputs, targets, weights in some(task, 4):
        np.testing.assert_array_equal(inputs[1:], targets[:-1])
        assert weights.all()
    by_file, by_package = tasks.read_sources(), tasks.read_sources(by_package=True)
    for inputs in task.held_out()[0][0]:
        assert bytes(inputs.astype(np.uint8)) in by_file["held out"].tobytes()
    assert len(by_file["training"]) > 9 * len(by_file["held out"])
    assert sum(map(len, by_file.values())) == sum(map(len, by_package.values()))
    package = pathlib.Path(asyncio.__file__).parent
    digest = hashlib.md5(package.name.encode(), usedforsecurity=False).digest()
    part = "training" if digest[0] % 20 else "held out"
    for path in package.glob("*.py"):
        text = path.read_bytes()
        assert [x for x in by_package if text in by_package[x].tobytes()] == [part]
    # row 0 has all positions, and each other row a part of them
    (task,) = sources.make_tasks(256, None)
    for _, _, weights in task.held_out():
        np.testing.assert_array_equal(weights[0], weights[1:].sum(0))
        assert (weights.sum(-1)[:, 0] == [256, 32, 32, 64, 128]).all()
    assert task.parts[1:] == ("0 to 32", "32 to 64", "64 to 128", "128 to 256")


def test_documents_ask_at_the_end():
    (task,) = documents.make_tasks(256, None)
    words = {index: word for word, index in documents.library().ids.items()}
    for examples in (some(task, 6), zip(*task.held_out()[0], strict=True)):
        for inputs, targets, weights in examples:
            told = [words[token] for token in inputs[:-16]]
            there = {name: told[told.index(name) + 1] for name in documents.NAMES}
            assert set(there.values()) <= {*documents.PLACES}
            questions = [words[token] for token in inputs[-16:]]
            assert questions[1::2] == 8 * ["?"]
            assert [*np.flatnonzero(weights)] == [*range(241, 256, 2)]
            answers = [words[token] for token in targets[weights > 0]]
            assert answers == [there[name] for name in questions[::2]]


def test_images_are_of_photographs_and_folds_are_the_digits_once():
    folds = [tasks.digits(fold, **OPTIONS).held_out()[0][0] for fold in range(5)]
    assert sum(map(len, folds)) == 1797 and {x.shape[1] for x in folds} == {64}
    task = tasks.images(**OPTIONS)
    x, y, w = task.draw(np.random.default_rng(0), 5)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert not x[:, 0].any() and w.all()
    held_out = np.concatenate([targets for _, targets, _ in task.held_out()])
    assert held_out.shape == (64, 768) and np.unique(held_out, axis=0).shape[0] == 64
    # training images are from the left of a picture, held-out ones from the rest
    for image in y.reshape(-1, 16, 16, 3):
        assert left_of(image) <= 512 - 16
    for image in held_out[::9].reshape(-1, 16, 16, 3):
        assert left_of(image) >= 512


def left_of(image):
    """Returns the first column of an image in one of the pictures."""
    for picture in load_sample_images().images:
        pieces = np.lib.stride_tricks.sliding_window_view(picture, (1, 16), (0, 1))
        for top, left in np.argwhere((pieces[:, :, :, 0] == image[0].T).all((2, 3))):
            if (picture[top : top + 16, left : left + 16] == image).all():
                return left
    raise AssertionError("The image stands in no picture.")


def lists(ids):
    """Returns ids as nested lists: an operator, then its arguments."""
    stack = [[]]
    for word in (listops.TOKENS[token] for token in ids if token):
        if word == "]":
            closed = stack.pop()
            stack[-1].append(closed)
        elif word.startswith("["):
            stack.append([word.removeprefix("[")])
        else:
            stack[-1].append(int(word))
    ((outermost,),) = stack
    return outermost


def worth(nested):
    """Evaluates by the paper's definitions, without the functions that sample."""
    if isinstance(nested, int):
        return nested
    operator, *arguments = nested
    values = [worth(argument) for argument in arguments]
    return {
        "MIN": lambda: sorted(values)[0],
        "MAX": lambda: sorted(values)[-1],
        "MED": lambda: int(statistics.median(values)),
        "SM": lambda: int(str(sum(values))[-1]),
    }[operator]()


def test_answers_of_listops_are_those_of_a_slow_evaluator():
    ids = [*map(listops.TOKENS.index, "[SM 9 9 [MED 1 8 3 ] ]".split()), 0]
    assert worth(lists(ids)) == 1  # by hand: 9 + 9 + 3 = 21
    x, y, w = listops.draw(100, 500, np.random.default_rng(0), 500)
    assert [worth(lists(row)) for row in x] == y[:, 0].tolist() and (w == 1).all()
    lengths = (x > 0).sum(1)
    assert 100 <= lengths.min() < 110 and 480 < lengths.max() <= 500
    assert all(row[:length].all() for row, length in zip(x, lengths))  # padding follows
    assert {*np.unique(x)} == {*range(listops.VOCABULARY_SIZE)}
    # share of the most frequent answer, as in the docstring
    assert abs(np.bincount(y[:, 0]).max() / len(y) - 0.16) < 0.06


def test_a_digit_stands_enlarged_on_an_empty_canvas():
    digits = tasks.read_digits().images.astype(int)
    places, parts = set(), {"training": set(), "held out": set()}
    for part, seen in parts.items():
        x, y, _ = long_tasks.draw_digits(part, 20, 2, np.random.default_rng(0), 100)
        for image, (label,) in zip(x.reshape(-1, 20, 20), y):
            tops, lefts = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
            found = [
                (top, left, index)
                for top in range(max(0, tops[-1] - 15), min(tops[0], 4) + 1)
                for left in range(max(0, lefts[-1] - 15), min(lefts[0], 4) + 1)
                for piece in [image[top : top + 16 : 2, left : left + 16 : 2]]
                for index in np.flatnonzero((digits == piece).all((1, 2)))
            ]
            # the position is found up to rows and columns of zeros
            assert label in {tasks.read_digits().target[i] for *_, i in found}
            places.add(found[0][:2])
            seen |= {index for *_, index in found}
    assert len(places) > 15 and not parts["training"] & parts["held out"]


def test_some_tokens_are_hidden_and_asked_for_but_no_padding():
    task = long_tasks.list_operations(128, **LONG)
    hiding = long_training.hiding(task)
    inputs, targets, weights = hiding.draw(np.random.default_rng(3), 64)
    asked = weights > 0
    assert (inputs[asked] == task.vocabulary_size).all()
    np.testing.assert_array_equal(inputs[~asked], targets[~asked])
    assert (targets[asked] != long_models.PADDING).all()
    share = asked.sum() / (targets != long_models.PADDING).sum()
    assert abs(share - long_training.HIDDEN_PART) < 0.02
    encoder = long_models.make_encoder(task, long_models.EXACT, seed=0)
    model = long_models.Reader(encoder, task, 10)
    inputs = np.array([[5, 1, 2, 3, 15]])
    longer = np.pad(inputs, ((0, 0), (0, 6)))
    np.testing.assert_allclose(model(inputs), model(longer), atol=1e-5)
    model.padded = False  # here 0 is a token and counts
    assert np.abs(model(longer) - model(inputs)).max() > 1e-3


def test_controls_count_tokens():
    random = np.random.default_rng(0)

    def draw(num):
        """Samples sequences; class 1 has more ones, and 3 of 4 begin with 3."""
        y = random.integers(2, size=(num, 1))
        x = (random.random((num, 40)) < 0.3 + 0.4 * y).astype(int)
        first = np.where(random.random((num, 1)) < 0.75, y, 1 - y)
        x[:, :1] = 2 + first
        return x, y, np.ones((num, 1))

    batches = [draw(64) for _ in range(20)]
    counted = long_training.histogram_accuracy(batches[:10], batches[10:], 4)
    assert counted > 0.95
    first = long_training.first_token_accuracy(batches[:10], batches[10:], 4)
    assert abs(first - 0.75) < 0.06
    # 2 after 0 is 3 of 4 pairs: (3 + 1/2) / (4 + 3/2); nothing is known after 1
    pairs = np.array([[0, 0, 0, 0]]), np.array([[2, 2, 2, 1]]), np.ones((1, 4))
    asked = np.array([[0, 1]]), np.array([[2, 2]]), np.array([[1.0, 1.0]])
    bits = long_training.pair_bits([pairs], [asked], 3)
    assert bits == pytest.approx((np.log2(5.5 / 3.5) + np.log2(3)) / 2)


@pytest.mark.slow
def test_rows_are_of_one_size_and_what_they_are_called():
    task = tasks.recall(64, 8, **OPTIONS)
    sizes = {
        row: models.count_parameters(models.make_model(task, row, 16, seed=0))
        for row in (models.EXACT, models.WINDOW, models.WITHOUT)
    }
    assert sizes[models.EXACT] == sizes[models.WINDOW]
    assert abs(sizes[models.WITHOUT] / sizes[models.EXACT] - 1) < 0.002
    model = models.make_model(task, "window + softmax, high gain, exact last", 16, 0)
    first, last = (block.attention for block in model.blocks)
    np.testing.assert_allclose(first.log_gain.numpy(), 2.0, rtol=1e-6)
    assert type(last).__name__ == "ExactAttention"
    long_task, kinds, exact = long_tasks.list_operations(128, **LONG), set(), None
    for row in long_models.MODELS:
        encoder = long_models.make_encoder(long_task, row, seed=0)
        size = models.count_parameters(encoder)
        exact = exact or size
        assert abs(size / exact - 1) < 0.02, row
        if row in long_models.NOT_CAUSAL:
            with pytest.raises(ValueError, match="causal"):
                long_models.attention_of(row, 64, 4, 2, 16, causal=True)
        layer = encoder.blocks[0].attention
        config = layer.get_config() if row != models.WITHOUT else {}
        kinds.add((type(layer).__name__, str(config | {"name": None})))
    assert len(kinds) == len(long_models.MODELS)


@pytest.mark.parametrize("measure", ["bits", "accuracy"])
def test_parts_are_measured_apart(measure):
    random = np.random.default_rng(0)
    logits = random.normal(size=(7, 7)).astype(np.float32)
    x, y = random.integers(7, size=(2, 4, 3, 16))
    w = (random.random((4, 2, 3, 16)) < 0.4).astype(np.float32)
    held_out = [*zip(x, y.astype(np.int32), w)]
    (task,) = sources.make_tasks(256, None)
    task = vars(task) | {"parts": ("a", "b"), "measure": measure}
    task = tasks.Task(**task | {"held_out": lambda: held_out})
    found = training.measuring(lambda inputs: tf.gather(logits, inputs), task)()
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    right = logits[x].argmax(-1) == y
    values = -np.log2(chances[x, y]) if measure == "bits" else right
    expected = [values[w[:, part] > 0].mean() for part in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fasta_files_of_all_kinds_are_read(tmp_path):
    with pytest.raises(ValueError, match=r"\.fasta\.gz.*Received: folder=.*none"):
        fasta.read_folder(tmp_path)
    (tmp_path / "below").mkdir()
    text = ">first one\nACG\nTn\n>second > of two\r\nacgR\r\n"
    (tmp_path / "one.fa").write_text(text)
    with gzip.open(tmp_path / "below/two.fasta.gz", "wt") as file:
        file.write("\n>only\nGATTACA")
    with lzma.open(tmp_path / "three.fna.xz", "wt") as file:
        file.write(">only\nTT\n\nTT\n")
    (tmp_path / "other.txt").write_text("ACGT")
    found = fasta.read_folder(tmp_path)
    read = {name: "".join(LETTERS[bases]) for name, bases in found.items()}
    read_by_hand = {"one.fa": "ACGTNNACGN", "three.fna.xz": "TTTT"}
    assert read == {"below/two.fasta.gz": "GATTACA", **read_by_hand}
    (tmp_path / "a.fa").write_text("ACGT\n>late\nACGT\n")
    with pytest.raises(ValueError, match=r"begin with '>'.*a.fa.*b'ACGT'"):
        fasta.read_folder(tmp_path)


@pytest.mark.parametrize("k", [1, 2, 5, 24, 31])
def test_kmers_are_numbers_in_base_four(k):
    bases = np.random.default_rng(k).choice(5, size=(3, 150), p=[0.24] * 4 + [0.04])
    for row, codes in zip(bases, fasta.kmers(bases, k), strict=True):
        for end, code in enumerate(codes, start=1):
            last = row[max(0, end - k) : end]
            known = len(last) == k and fasta.UNKNOWN not in last
            assert code == (int("".join(map(str, last)), 4) if known else -1)


def slowly_in_repeats(row, k, window):
    """Finds repeats by comparing all words."""
    words = [
        "".join(LETTERS[row[max(0, end - k) : end]]) for end in range(len(row) + 1)
    ]
    found = []
    for end in range(1, len(row) + 1):
        known = len(words[end]) == k and "N" not in words[end]
        earlier = [at for at in range(k, end) if words[at] == words[end] and known]
        # the base after the last such word is at max(earlier); the query is at end - 1
        found.append(bool(earlier) and end - 1 - max(earlier) >= window)
    return found


def test_repeats_are_found_beyond_the_window():
    letters = "ACGTTTGCAACGTCACGNACGN"
    #          after the second ACG, at 11, T is 8 tokens back; after the third, at 16,
    #          the nearest T is at 12; ACG after N is at 20, and its copy at 17 is N
    ids = np.array([[fasta.BASES.index(letter) for letter in letters]], np.uint8)
    for window, places in ((4, [11, 12, 16]), (5, [11, 12])):
        found = fasta.in_repeats(ids, 3, window)
        assert [*np.flatnonzero(found[0])] == places
    rows = np.random.default_rng(0).choice(5, size=(8, 120), p=[0.24] * 4 + [0.04])
    for k, window in ((2, 1), (2, 7), (3, 30)):
        found = fasta.in_repeats(rows, k, window)
        assert 0.02 < found.mean() < 0.95
        expected = [slowly_in_repeats(row, k, window) for row in rows]
        np.testing.assert_array_equal(found, expected)


def test_the_last_strain_copies_what_its_relatives_had(strains):
    genomes = fasta.read_folder(strains)
    text = {name: "".join(LETTERS[bases]) for name, bases in genomes.items()}
    for part in "training", "held out":
        x, y, w = draw(str(strains), "0_2", part, 2000, np.random.default_rng(0), 12)
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        seen = set()
        for inputs, target, weights in zip(x, y[:, -1], w, strict=True):
            letters = "".join(LETTERS[[*inputs, target]])
            pieces = letters.removeprefix("N").rstrip("N").split("N")
            size = len(pieces[0])
            assert all(len(piece) == size for piece in pieces[:-1])
            owners = [{name for name in text if x in text[name]} for x in pieces]
            if part == "training":
                assert weights.all() and {"0_2.fa"} not in owners
                own = len(pieces) - 1
            else:
                begins = np.argmax(weights)
                assert weights[begins:].all() and begins % (size + 1) == 0
                own = begins // (size + 1)
                assert not any(of <= {"0_2.fa"} for of in owners[:own])
                assert all("0_2.fa" in of for of in owners[own:])
            # all pieces are of one species; the last strain has regions of the others
            assert len({name[0] for of in owners for name in of}) == 1
            starts = [piece[:ANCHOR] for piece in pieces]
            assert 0 < own < len(pieces) and {*starts[own:-1]} <= {*starts[:own]}
            seen |= set.union(*owners)
        all_seen = {name for name in text if part == "training" or name[0] == "0"}
        assert seen == all_seen
        # copies are found, except 24 bases at the start and after differences
        assert 0.2 < fasta.in_repeats(x, 24, 64).mean() < 0.7
    for wrong in ("5_5", "1_", ""):
        with pytest.raises(ValueError, match=f"held_out='{wrong}'.*0_2.fa.*relatives"):
            read_strains(str(strains), wrong)


def test_addresses_are_alike_where_the_last_bases_are():
    layer = genomes.BasesBefore(5, 8)
    layer.build((None, None))
    x = np.random.default_rng(0).integers(4, size=(1, 64)).astype(np.int32)
    x[0, 40:52] = x[0, 20:32]
    numbers = layer.last(tf.constant(x), 12)
    padded = [fasta.UNKNOWN] * 11 + x[0].tolist()
    words = ["".join(map(str, padded[end : end + 12])) for end in range(64)]
    assert numbers.numpy()[0].tolist() == [int(word, 5) for word in words]
    signs = layer.signs(numbers).numpy()[0]
    alike = signs @ signs.T / genomes.SIGNS
    others = alike[np.triu_indices(64, 1)]
    assert alike[51, 31] == 1 and (others == 1).sum() == 1 and np.abs(signs).min() == 1
    # like products of random signs: mean 0, standard deviation 1 / sqrt(32)
    assert abs(others.mean()) < 0.03 and abs(others.std() - 0.18) < 0.03
    # a token has the address of bases up to it, and the address of bases before it
    for table in layer.own.embeddings, layer.few.embeddings, layer.here.kernel:
        table.assign(tf.zeros_like(table))
    before = signs[:-1] @ layer.before.kernel.numpy()
    np.testing.assert_allclose(layer(x)[0, 1:], before, rtol=1e-5, atol=1e-6)
