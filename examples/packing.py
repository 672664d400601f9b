"""Pack documents of different lengths into rows with `segment_ids`.

    python -m examples.packing                    # some minutes on 2 cores
    python -m examples.packing --documents 40     # seconds, to see that it runs

The documents are docstrings of Python's standard library, from a few to some hundred
bytes long. A model of bytes trains on them in three ways:

- padded: each document fills a row of its own with padding;
- packed: a row has several documents, and `segment_ids` hide them from each other;
- packed without `segment_ids`, as a control: a document sees earlier ones in its row.

The table shows the seconds of a pass over all documents, and the bits per held-out byte
after training. Padded documents fill more rows, so a pass has more steps. At the end
the packed model reads one document alone, and its predictions are the same.
"""

import ast
import math
import pathlib
import sysconfig
import time

import keras
import numpy as np

import keras_performer
from examples import trials

# The byte that ends a document and fills padding.
END = 0
PADDING = 0  # the segment id of padding; ids of a row's documents start at 1
BATCH = 8


def main(documents: int = 1200, passes: int = 2, length: int = 512):
    """Trains and compares models; returns the table, and how packing changes logits.

    Args:
        documents: number of docstrings; every tenth is held out.
        passes: number of passes over the documents.
        length: bytes of a row; longer docstrings are left out.
    """
    texts = read_docstrings(documents, length)
    held_out = rows_of(one_each(texts[::10]), length)
    training = [text for index, text in enumerate(texts) if index % 10]
    packed = rows_of(first_fit(training, length), length)
    ways = {
        "padded": (rows_of(one_each(training), length), True),
        "packed": (packed, True),
        "packed, without segment_ids": (packed, False),
    }
    table, models = {}, {}
    for name, (rows, with_ids) in ways.items():
        print(f"\n{name}: {len(rows[0])} rows")
        models[name] = make_model(length, with_ids)
        seconds = train(models[name], rows, passes)
        bits = bits_of(models[name], held_out)
        padding = float((rows[1] == PADDING).mean())
        table[name] = len(rows[0]), padding, seconds, bits
    print(f"\n{'':28}   rows  padding  seconds a pass  bits a held-out byte")
    for name, (count, padding, seconds, bits) in table.items():
        print(f"{name:28}{count:7,}{padding:9.0%}{seconds:16.1f}{bits:22.3f}")
    difference = alone_and_packed(models["packed"], packed)
    print(f"\none document alone and packed: logits differ by {difference:.1e}")
    return table, difference


def read_docstrings(count, length):
    """Returns `count` docstrings of the standard library as bytes, evenly spaced."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            kinds = ast.Module, ast.ClassDef, ast.FunctionDef
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text and len(text.encode()) < length:
                found.append(text.encode() + bytes([END]))
    chosen = np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)
    return [found[index] for index in chosen]


def one_each(texts):
    return [[text] for text in texts]


def first_fit(texts, length):
    """Packs texts into rows, the longest first, each into the first row with room."""
    rows, room = [], []
    for text in sorted(texts, key=len, reverse=True):
        fits = [index for index, free in enumerate(room) if free >= len(text)]
        if not fits:
            rows.append([])
            room.append(length)
            fits = [len(rows) - 1]
        rows[fits[0]].append(text)
        room[fits[0]] -= len(text)
    return rows


def rows_of(lists, length):
    """Returns arrays `(rows, length)`: bytes and segment ids.

    Empty rows fill the last batch.
    """
    shape = math.ceil(len(lists) / BATCH) * BATCH, length
    tokens, ids = np.full(shape, END, "int32"), np.full(shape, PADDING, "int32")
    for row, texts in enumerate(lists):
        end = 0
        for number, text in enumerate(texts, start=1):
            start, end = end, end + len(text)
            tokens[row, start:end] = np.frombuffer(text, np.uint8)
            ids[row, start:end] = number
    return tokens, ids


def of_fit(rows):
    """Returns arguments of `fit`: tokens and ids, next bytes, and their weights."""
    tokens, ids = rows
    weights = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] != PADDING)
    last = (0, 0), (0, 1)
    return {
        "x": list(rows),
        "y": np.pad(tokens[:, 1:], last),
        "sample_weight": np.pad(weights, last).astype("float32"),
    }


def make_model(length, with_ids):
    """Returns a compiled causal model of two inputs, bytes and segment ids.

    With rotary positions and "taylor" only distances count, so the position of a
    document in its row changes nothing. (With random features it changes a little.)
    """
    keras.utils.set_random_seed(0)
    network = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=length,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        feature_map="taylor",
        exact_window=16,
        forget_gate=False,
        position_embedding="rotary",
        seed=0,
    )
    tokens, ids = (keras.Input((length,), dtype="int32") for _ in range(2))
    logits = network(tokens, segment_ids=ids if with_ids else None)
    model = keras.Model([tokens, ids], logits)
    model.compile(
        keras.optimizers.Adam(3e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
    )
    return model


def train(model, rows, passes):
    """Trains; returns the seconds of a pass, without the first step, which compiles."""
    first = tuple(x[:BATCH] for x in rows)
    model.fit(**of_fit(first), batch_size=BATCH, verbose=0)
    start = time.perf_counter()
    model.fit(**of_fit(rows), batch_size=BATCH, epochs=passes, verbose=2)
    return (time.perf_counter() - start) / passes


def bits_of(model, rows):
    """Returns bits per byte; `evaluate` averages batches of different byte counts."""
    given = of_fit(rows)
    nats = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    logits = model.predict(given["x"], batch_size=BATCH, verbose=0)
    nats.update_state(given["y"], logits, given["sample_weight"])
    return float(nats.result()) / math.log(2)


def alone_and_packed(model, rows):
    """Returns the largest difference of logits of a document, alone and packed.

    The document is the last one of the row with the most documents.
    """
    tokens, ids = rows
    row = int(ids.max(1).argmax())
    places = np.flatnonzero(ids[row] == ids[row].max())
    alone = np.zeros_like(tokens[:1]), np.zeros_like(ids[:1])
    alone[0][0, : len(places)], alone[1][0, : len(places)] = tokens[row, places], 1
    packed = model([tokens[row : row + 1], ids[row : row + 1]])[0].numpy()[places]
    return float(np.abs(model(alone)[0, : len(places)].numpy() - packed).max())


if __name__ == "__main__":
    trials.command(main)
