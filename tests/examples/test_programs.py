"""Programs train at small size; tests compute their data and tables by hand."""

import ast
import re

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits, load_sample_images

from examples import (
    classification,
    digits,
    documents,
    own_feature_map,
    packing,
    quickstart,
    text,
    translation,
    trials,
    vision,
)
from examples.own_feature_map import PowerFeatures
from keras_performer import feature_maps


@pytest.fixture
def run(monkeypatch, capsys, one_block, eagerly, assert_drawn):
    """Returns a function that runs a program with some of its rows."""

    def run_small(program, rows, steps=2, picture="curves.png", small=None, **options):
        monkeypatch.setattr(trials, "EVALUATIONS", 2)
        chosen = {name: program.ROWS[name] for name in rows}  # all rows would take long
        for name, value in {"ROWS": chosen, **(small or {})}.items():
            monkeypatch.setattr(program, name, value)
        results = program.main(steps=steps, output_dir="out", **options)
        assert_drawn(f"out/{picture}")
        return results, capsys.readouterr().out

    return run_small


# -- text


def test_tables_are_counts_of_what_followed():
    training, held_out = (np.frombuffer(x, np.uint8) for x in (b"abaac", b"bac"))
    test = text.windows(held_out, [0], 2)
    np.testing.assert_array_equal(test, [[[*b"ba"]], [[*b"ac"]]])
    # with one count more: 1 / 256, or the probability in the table of one byte fewer
    a, c = (3 + 1 / 256) / 6, (1 + 1 / 256) / 6
    expected = [-np.log2([a, c]), -np.log2([(1 + a) / 2, (1 + c) / 4])]
    for num_before, bits in enumerate(expected):
        found = text.table_bits(training, test, num_before)
        assert found == pytest.approx(bits[num_before:].mean())


@pytest.mark.slow
def test_text_trains_compares_with_tables_and_continues(run):
    rows = "no attention", "Performer"
    (tables, curves), printed = run(text, rows, steps=8, length=32)
    assert list(curves) == list(rows) and len(tables) == 3
    for curve in curves.values():
        assert curve[0][0] == 4 and curve[1][0] == 8
        assert curve[1][1] < curve[0][1] < 8.5
    assert printed.count("\n    def ") == 2
    assert f"{'Performer':30}{curves['Performer'][-1][1]:.3f}" in printed


# -- classification


def test_tokens_are_the_pixels_with_ink():
    images = load_digits().images[:20]
    sequences = classification.to_sequences(images, np.random.default_rng(0))
    corners = set()
    for image, (ink, row, column) in zip(images, np.moveaxis(sequences, 1, 0)):
        rows, columns = np.nonzero(image)
        number = len(rows)
        np.testing.assert_array_equal(ink[:number], image[rows, columns])
        corners.update(zip(row[:number] - rows, column[:number] - columns))
        assert not (ink[number:].any() or row[number:].any() or column[number:].any())
    assert min(corners) >= (1, 1) and max(corners) <= (3, 3) and 4 < len(corners) <= 9


def test_held_out_digits_are_not_trained_on():
    known = load_digits()
    (training, labels), (held_out, _) = classification.load_data(1347)
    assert held_out[0].shape[0] == 450
    # one epoch is 1,347 sequences; with the held-out ones, each digit occurs once
    total = training[0].sum() + held_out[0].sum()
    assert total == known.images.sum() and len(labels) == 1347


@pytest.mark.slow
def test_classification_trains_and_padding_changes_nothing(run):
    (curves, changes), _ = run(classification, ["Performer"], steps=4)
    assert changes["with masks"] < 1e-5 < 1e-3 < changes["without masks"]
    assert [step for step, _ in curves["Performer"]] == [2, 4]


# -- own_feature_map


def test_features_are_powers():
    features = PowerFeatures(3)
    activation = features.kernel(features.draw(6, 4, seed=(0, 1))).activation
    np.testing.assert_array_equal(activation(tf.constant([-1.0, 2.0])), [0.0, 8.0])
    again = feature_maps.deserialize(feature_maps.serialize(features))
    assert again == features != PowerFeatures(3, trainable=True)


def test_answers_stand_in_the_dictionary():
    inputs, answers = own_feature_map.dictionaries(3, np.random.default_rng(0))
    for questions, first, second, answer in zip(*inputs, answers):
        assert len(set(first.tolist())) == own_feature_map.PAIRS
        meaning = dict(zip(first.tolist(), second.tolist()))
        assert [meaning[word] for word in questions.tolist()] == answer.tolist()


@pytest.mark.slow
def test_own_feature_map_trains_and_loads(run):
    label = "relu^2, W trained"
    (curves, is_same), printed = run(own_feature_map, [label])
    assert is_same and f"{label:30}{curves[label][-1][1]:.3f}" in printed


# -- translation


@pytest.fixture(scope="module")
def translator():
    """Returns an untrained model and eight examples."""
    model = translation.make_model(translation.FEATURES, steps=100)
    given = translation.examples(8, np.random.default_rng(1))
    model(given[0])
    return model, given[0]


NUMBERS = {
    0: "zero",
    13: "thirteen",
    40: "forty",
    99: "ninety-nine",
    1000: "one thousand",
    20_010: "twenty thousand ten",
    305_012: "three hundred five thousand twelve",
}


def test_numbers_in_words():
    assert {number: translation.spelled(number) for number in NUMBERS} == NUMBERS


def test_each_byte_is_followed_by_its_target():
    given = translation.examples(200, np.random.default_rng(0))
    (numbers, before), after, weights = given
    np.testing.assert_array_equal(after[:, :-1], before[:, 1:])
    np.testing.assert_array_equal(weights, after > 0)
    lengths = set()
    for row, first, second in zip(numbers, before, after):
        number = bytes(row).lstrip(b"\0").decode()
        assert str(int(number)) == number  # padded on the left, without leading zeros
        words = translation.spelled(int(number)).encode()
        assert bytes(first).startswith(b"\n" + words)
        assert bytes(second).rstrip(b"\0") == words + b"\n"
        lengths.add(len(number))
    assert lengths == set(range(1, translation.DIGITS + 1))


def test_what_is_written_by_a_state_is_what_one_pass_finds_likeliest(translator):
    model, (numbers, _) = translator
    made = model.translate(numbers)
    before = np.zeros((8, translation.LENGTH), np.uint8)
    before[:, 0] = translation.START
    before[:, 1 : made.shape[1]] = made[:, :-1]
    likeliest = model([numbers, before]).numpy().argmax(-1)[:, : made.shape[1]]
    is_written = made != translation.PADDING
    np.testing.assert_array_equal(made[is_written], likeliest[is_written])
    # the written text is an exact match, and no match after a change of one byte
    logits = np.eye(128)[made]
    assert translation.exact_match(made, logits).numpy().tolist() == [1.0] * 8
    logits[2, 0] = np.roll(logits[2, 0], 1)
    expected = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert translation.exact_match(made, logits).numpy().tolist() == expected


def test_the_control_sees_no_digits(translator, monkeypatch):
    model, (numbers, before) = translator
    other = np.roll(numbers, 1, axis=0)
    assert np.abs(model([numbers, before]) - model([other, before])).max() > 1e-2
    monkeypatch.setattr(model, "sees_digits", False)
    np.testing.assert_array_equal(model([numbers, before]), model([other, before]))


@pytest.mark.slow
def test_translation_trains_and_writes(run, monkeypatch):
    # a window shorter than these texts
    monkeypatch.setitem(
        translation.ROWS, "Performer", {**translation.FEATURES, "window": 4}
    )
    small = {"DIGITS": 1, "LENGTH": 8, "BATCH": 4}
    (curves, written), printed = run(translation, ["Performer"], small=small)
    assert 0 <= curves["Performer"][-1][1] < 0.2 and len(written) > 3
    for number, words in written.items():
        assert f"{number} {words}\n" in printed


# -- vision


def test_an_image_is_a_photograph_with_a_digit_somewhere():
    # each pixel of this photograph encodes its position, and ink is lighter than all
    photograph = np.arange(30 * 40).reshape(30, 40) / 10**4
    digit = np.zeros((8, 8))
    digit[2, 5] = digit[7, 0] = 1
    images = vision.lay([digit] * 60, [photograph], np.random.default_rng(0))
    assert images.shape == (60, vision.IMAGE, vision.IMAGE)
    places = {tuple(np.argwhere(image == 1)[0] - (2, 5)) for image in images}
    assert {tuple(np.diff(np.argwhere(image == 1), axis=0)[0]) for image in images} == {
        (5, -5)
    }
    assert min(map(min, places)) >= 0 and max(map(max, places)) <= vision.IMAGE - 8
    windows = np.lib.stride_tricks.sliding_window_view(photograph, images.shape[1:])
    origins = set()
    for image in images:
        same = (windows == np.where(image == 1, windows, image)).all((2, 3))
        origins.update(map(tuple, np.argwhere(same)))
    assert len(places) > 30 and 30 < len(origins) <= 60
    assert photograph.max() < 1  # the photograph itself did not change


def test_patches_are_parts_of_the_image_row_by_row():
    images = np.random.default_rng(0).random((3, 16, 16), "float32")
    patches = vision.to_patches(images)
    assert patches.shape == (3, 64, 4)
    expected = images[1, 2 * 3 : 2 * 4, 2 * 5 : 2 * 6]
    np.testing.assert_array_equal(patches[1, 3 * 8 + 5], expected.ravel())
    np.testing.assert_array_equal(vision.to_images(patches), images)


def test_held_out_digits_and_photographs_are_not_seen_in_training(monkeypatch):
    given = []
    monkeypatch.setattr(vision, "lay", lambda *args: given.append(args[:2]) or args[0])
    monkeypatch.setattr(vision, "to_patches", lambda images: images)
    (training, labels), (test, test_labels) = vision.load_data(2000)
    assert len(training) == len(labels) == 2000 and len(test) == len(test_labels) == 450
    label_of = {x.tobytes(): y for x, y in zip(training, labels)}
    assert not label_of.keys() & {x.tobytes() for x in test}
    known = load_digits()
    for image, label in zip(known.images, known.target):
        assert label_of.get((image / 16).tobytes(), label) == label
    (_, upper), (_, lower) = given
    for above, below, image in zip(upper, lower, load_sample_images().images):
        grey = vision.DIMMED * image.mean(-1) / 255
        np.testing.assert_array_equal(np.concatenate([above, below]), grey)
        assert abs(len(above) - len(below)) <= 1


@pytest.mark.slow
def test_vision_trains_and_reads_images(run, assert_drawn):
    (curves, read), printed = run(vision, ["Performer"])
    _, (_, labels) = vision.load_data(1)  # the same for all counts
    (step, last) = curves["Performer"][-1]
    assert step == 2 and f"{'Performer':30}{last:.3f}" in printed
    np.testing.assert_allclose((read["Performer"] == labels).mean(), last, atol=1e-6)
    assert_drawn("out/images.png")


@pytest.mark.parametrize("name", vision.ROWS)
def test_each_row_reads_images(name):
    make = vision.ROWS[name]
    model = vision.make_model(make(), make(), 10)
    patches = np.random.default_rng(0).random((2, 64, 4), "float32")
    logits = model(patches).numpy()
    assert logits.shape == (2, 10)
    # without attention, the order of patches has no effect
    moved = np.abs(model(patches[:, ::-1]).numpy() - logits).max()
    assert moved < 1e-5 if name == "no attention" else moved > 1e-4


# -- documents


@pytest.mark.parametrize("held_out", [False, True])
def test_answers_stand_in_the_document_among_words_of_the_library(held_out):
    library = documents.Library()
    word_of = {index: word for word, index in library.ids.items()}
    source = library.held_out if held_out else library.training
    hidden = {library.ids[word] for word in (*documents.NAMES, *documents.PLACES)}
    assert not hidden & set(source.tolist())
    windows = np.lib.stride_tricks.sliding_window_view(source, 260)
    x, places = library.documents(6, 300, seed=3, held_out=held_out)
    assert x.shape == (6, 300) and places.shape == (6, len(documents.NAMES))
    found = set()
    for tokens, answers in zip(x, places):
        words = [word_of[token] for token in tokens]
        at = {name: words.index(name, 16) for name in documents.NAMES}
        found.update(at.values())
        lines = np.ravel([[i, i + 1, i + 2] for i in at.values()])
        assert all(words[i + 2] == "." for i in at.values())
        assert sorted(words[:16:2]) == sorted(at) and set(words[1:16:2]) == {"?"}
        told = [documents.PLACES.index(words[at[name] + 1]) for name in words[:16:2]]
        np.testing.assert_array_equal(answers, told)
        rest = np.delete(tokens, [*range(16), *lines])
        starts = np.flatnonzero(source[: len(windows)] == rest[0])
        assert (windows[starts] == rest).all(1).any()
    assert len(found) > 30  # at many positions


@pytest.mark.slow
def test_documents_trains(run):
    names = "no attention", "Performer"
    small = {"STAGES": ((48, 4, 1.0),), "EVALUATIONS": 2, "HELD_OUT": 20}
    curves, printed = run(documents, names, small=small)
    for name, curve in curves.items():
        assert [step for step, _ in curve] == [1, 2]
        assert f"{name:30}{curve[-1][1]:.3f}" in printed


@pytest.mark.parametrize("name", ["local attention", "Performer"])
def test_each_row_answers_the_questions_of_a_document(name):
    library = documents.Library()
    model = documents.make_model(documents.ROWS[name], len(library.ids), 10)
    tokens, places = library.documents(2, 128, seed=1)
    logits = model(tokens).numpy()
    assert logits.shape == (*places.shape, len(documents.PLACES))
    # the end of a document, beyond two windows, reaches the first answer by attention
    other = np.concatenate([tokens[:, :96], tokens[:, :95:-1]], axis=1)
    moved = np.abs(model(other).numpy() - logits)[:, 0].max()
    assert (moved > 1e-5) == (name == "Performer")


# -- packing


def test_documents_share_rows_and_none_is_lost():
    texts = [bytes([n] * n) for n in (3, 9, 2, 5, 4, 1)]
    rows = packing.first_fit(texts, length=10)
    assert [[len(text) for text in row] for row in rows] == [[9, 1], [5, 4], [3, 2]]
    assert sorted(text for row in rows for text in row) == sorted(texts)


def test_rows_have_the_number_of_their_documents():
    tokens, ids = packing.rows_of([[b"ab\0", b"c\0"], [b"\xff\0"]], length=6)
    assert tokens.shape == ids.shape == (packing.BATCH, 6)
    np.testing.assert_array_equal(tokens[:2], [[97, 98, 0, 99, 0, 0], [255, *[0] * 5]])
    np.testing.assert_array_equal(ids[:2], [[1, 1, 1, 2, 2, 0], [1, 1, *[0] * 4]])
    assert not ids[2:].any()
    # no prediction from one document to the next, or into padding
    given = packing.of_fit((tokens, ids))
    np.testing.assert_array_equal(given["y"][0], [98, 0, 99, 0, 0, 0])
    np.testing.assert_array_equal(
        given["sample_weight"][:2], [[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    )


@pytest.mark.slow
def test_packed_documents_are_predicted_as_alone(capsys, one_block, eagerly):
    texts = packing.read_docstrings(40, 128)
    assert len(texts) == 40 and max(map(len, texts)) <= 128
    assert all(text.endswith(b"\0") and text.count(b"\0") == 1 for text in texts)
    table, difference = packing.main(documents=40, passes=1, length=128)
    assert difference < 1e-4
    padded, packed, mixed = table.values()
    assert packed[0] < padded[0] / 2 and packed[1] < padded[1]
    assert all(2 < bits < 8 for *_, bits in table.values())
    # without segments, neighbouring documents change the result
    assert packed[3] != pytest.approx(mixed[3], abs=1e-4)
    assert f"{packed[3]:.3f}" in capsys.readouterr().out


# -- digits


def test_the_embedding_knows_the_place_and_goes_on_from_a_state():
    layer = digits.InkAndPlace(5)
    inputs = np.random.default_rng(2).integers(0, 9, (2, 40))
    whole, *_ = layer(inputs, layer.empty_state(2))
    tables = [x.get_weights()[0] for x in (layer.ink, layer.row, layer.column)]
    for place in (0, 13, 14, 39):
        parts = inputs[1, place], place // 14, place % 14
        expected = sum(table[row] for table, row in zip(tables, parts))
        np.testing.assert_allclose(whole[1, place], expected, atol=1e-6)
    _, _, state = layer(inputs[:, :17], layer.empty_state(2))
    rest, *_ = layer(inputs[:, 17:], state)
    np.testing.assert_allclose(rest, whole[:, 17:], atol=1e-6)


@pytest.mark.slow
def test_digits_have_the_bits_of_the_models_and_given_rows_stay(run, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (60, 784)).astype(float)
    monkeypatch.setattr(digits, "mnist_data", lambda: (images, np.arange(60) % 10))
    rows = "no attention", "Performer"
    (bits, pictures), printed = run(digits, rows, picture="digits.png")
    images, _ = digits.read_digits()
    held_out = images[::10]
    training = images[np.arange(60) % 10 > 0]
    counts = [
        1 + (training[:, place] == grey).sum()
        for image in held_out
        for place, grey in enumerate(image)
    ]
    expected = -np.log2(np.divide(counts, len(training) + digits.LEVELS)).mean()
    assert bits["histogram of each place"] == pytest.approx(expected)
    shown, num_given = pictures["held out"]
    assert num_given == 14
    for name in rows:
        assert 0 < bits[name] < 9 and f"{name:30}{bits[name]:.3f}" in printed
        completed, num_given = pictures[f"completed,\n{name}"]
        np.testing.assert_array_equal(completed[:, : 14 * 7], shown[:, : 14 * 7])
        assert num_given == 7 and pictures[f"from nothing,\n{name}"][1] == 0


# -- quickstart


def test_questions_are_far_from_the_answers_in_the_list():
    rows = quickstart.texts(20, seed=3)
    firsts = set()
    for row in rows.tolist():
        parts = re.fullmatch(
            r"((?:[A-Z]\d){8})\.{64}((?:[A-Z]\d){8})", bytes(row).decode()
        )
        listed, asked = (re.findall("..", part) for part in parts.groups())
        assert sorted(listed) == sorted(asked)
        assert len({letter for letter, _ in listed}) == 8
        firsts.add(listed.index(asked[0]))
    assert len(firsts) > 4  # the order gives no hint


@pytest.mark.slow
def test_quickstart_finds_the_answers_saves_loads_and_generates(
    capsys, monkeypatch, uncompiled
):
    small = {"PAIRS": 4, "DOTS": 16, "WINDOW": 8, "LIST": 24, "LENGTH": 32}
    for name, value in small.items():
        monkeypatch.setattr(quickstart, name, value)
    attentions = quickstart.attentions()
    names = "PerformerAttention", "no attention"
    assert [*attentions] == [names[0], "ExactAttention", "LocalAttention", names[1]]
    chosen = {name: attentions[name] for name in names}
    monkeypatch.setattr(quickstart, "attentions", lambda: chosen)
    quickstart.main(steps=120)
    _, table, rest = capsys.readouterr().out.split("\n\n")
    header, *lines = table.splitlines()
    assert header.split() == ["attention", "seconds", "accuracy"]
    found = [re.fullmatch(r"(\S.*\S) +(\d+\.\d) +([01]\.\d\d)", line) for line in lines]
    assert [match[1] for match in found] == list(names)
    learned, guessed = (float(match[3]) for match in found)
    assert learned > 0.9 and guessed < 0.3
    equal, listed, generated = (
        ast.literal_eval(line.partition(":")[2].strip()) for line in rest.splitlines()
    )
    assert equal is True
    assert listed == bytes(quickstart.texts(1, quickstart.HELD_OUT)[0, :8].tolist())
    assert sum(a == b for a, b in zip(listed, generated)) >= 7
