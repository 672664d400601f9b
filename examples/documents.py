"""Answer eight questions about a long document at once.

    python -m examples.documents               # a quarter of an hour on 2 cores
    python -m examples.documents --steps 20    # minutes, to see that it runs

A document has 2,048 words of Python's standard library. Among them, far apart, are
eight lines such as "Clara school ."; at its beginning are eight questions, "Clara ?",
"Ben ?", ... The model predicts one of four places for each question. Each document
assigns places to people anew, so the model has to look up the answers.

A short convolution joins each place to the name before it. A model first trains on many
short documents, then on a few long ones: short documents cost less and have as many
questions. Rotary positions and attention work at any length. The example compares
`PerformerAttention` (with a window of 32 words) with no attention, local attention and
exact attention, and with always naming the most frequent place of the document.
Curves go to `runs/documents`.

Accuracy of 512 answers in held-out documents of 2,048 words (one run, seed 0; 2 busy
cores of an AMD EPYC, Zen 4, 30 minutes of CPU time, most of it for exact attention):
most frequent place 0.459, no attention 0.250, local attention 0.232, Performer 0.873,
exact attention 0.908. After 240 steps on documents of 256 words, the Performer and
exact attention answered all questions about documents of this length. Then they trained
for 160 steps on long documents.
"""

import collections
import pathlib
import re
import string

import keras
import numpy as np
from keras import layers

from examples import trials
from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention, PerformerBlock

NAMES = "Anna Ben Clara David Emma Felix Greta Henry".split()
PLACES = "home school work sea".split()
OTHER, ASKED, END = "<other>", "?", "."
COMMON = 500  # the most frequent words of the library, which have ids
# Words of a document, documents in a step, share of all steps.
STAGES = ((256, 16, 3 / 5), (2048, 2, 2 / 5))
HELD_OUT = 64  # documents of each length
HEADS, DIM, WINDOW = 4, 64, 32
SIZES = {"num_heads": HEADS, "key_dim": DIM // HEADS, "rotary": True}
ROWS = {
    "no attention": lambda: None,
    "local attention": lambda: LocalAttention(**SIZES, sliding_window=WINDOW),
    "Performer": lambda: PerformerAttention(
        **SIZES, exact_window=WINDOW, num_random_features=128, seed=0
    ),
    "exact attention": lambda: ExactAttention(**SIZES),
}
EVALUATIONS = 4  # of each stage


def main(steps: int = 400, output_dir: str = "runs/documents"):
    """Trains and compares models; returns curves of the accuracy on held-out documents.

    Args:
        steps: optimizer steps of each model, on short and long documents together.
        output_dir: folder for `curves.png`.
    """
    library = Library()
    curves = {}
    for label, make_attention in ROWS.items():
        print(f"\n{label}: {steps} steps")
        model = make_model(make_attention, len(library.ids), steps)
        curves[label] = train(model, library, steps)

    _, places = library.documents(HELD_OUT, STAGES[-1][0], seed=1)
    guess = {"most frequent place": most_frequent(places)}
    title = f"accuracy of {places.size} answers, documents of {STAGES[-1][0]:,} words"
    trials.show(title, {**guess, **trials.last(curves)})
    figure, axes = trials.draw(curves, "right answers, held out", baselines=guess)
    axes.axvline(int(STAGES[0][2] * steps), color="#cccccc", lw=1)
    axes.set_xlabel("optimizer step (behind the line, documents are long)")
    trials.save(figure, output_dir)
    return curves


class Library:
    """Words of Python's standard library, and documents made of them.

    `ids` maps words to ints; `held_out` words are never trained on.
    """

    def __init__(self):
        files = sorted(pathlib.Path(string.__file__).parent.glob("*.py"))
        text = "\n".join(path.read_text("utf-8", errors="replace") for path in files)
        words = re.findall(r"[A-Za-z]+|[^\sA-Za-z]", text)
        known = [OTHER, ASKED, END, *NAMES, *PLACES]
        common = collections.Counter(word for word in words if word not in known)
        known += [word for word, _ in common.most_common(COMMON)]
        self.ids = {word: index for index, word in enumerate(known)}
        hidden = {*NAMES, *PLACES}  # only the eight lines may have these words
        codes = [OTHER if word in hidden else word for word in words]
        codes = np.array([self.ids.get(word, 0) for word in codes], "int32")
        self.training, self.held_out = np.split(codes, [9 * len(codes) // 10])

    def documents(self, count, length, seed, held_out=True):
        """Returns documents `(count, length)`, and the answer to each question."""
        random = np.random.default_rng(seed)
        source = self.held_out if held_out else self.training
        names, places = (np.array([self.ids[x] for x in y]) for y in (NAMES, PLACES))
        documents, answers = [], []
        for _ in range(count):
            there = random.integers(len(PLACES), size=len(NAMES))
            asked, told = (random.permutation(len(NAMES)) for _ in range(2))
            questions = [[names[one], self.ids[ASKED]] for one in asked]
            lines = [[names[x], places[there[x]], self.ids[END]] for x in told]
            room = length - np.size(questions) - np.size(lines)
            start = random.integers(len(source) - room)
            cuts = np.sort(random.integers(room, size=len(lines)))
            pieces = np.split(source[start : start + room], cuts)
            rest = [part for pair in zip(lines, pieces[1:]) for part in pair]
            documents.append(np.concatenate([*questions, pieces[0], *rest]))
            answers.append(there[asked])
        return np.array(documents), np.array(answers)


def most_frequent(places):
    """Returns the accuracy of always naming the most frequent place of a document."""
    counts = [np.bincount(row).max() for row in places]
    return float(np.mean(counts) / places.shape[1])


def make_model(make_attention, vocabulary_size, steps):
    """Returns a model of two blocks; it outputs logits of places for each question."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(vocabulary_size, DIM)(tokens)
    for _ in range(2):
        x = PerformerBlock(make_attention(), 2 * DIM, conv_kernel_size=4)(x)
    # each question is a name and a question mark; the output at the name is read
    x = layers.LayerNormalization()(x[:, : 2 * len(NAMES) : 2])
    model = keras.Model(tokens, layers.Dense(len(PLACES))(x))
    trials.compile_model(model, 4e-3, steps, metrics=["accuracy"])
    return model


def train(model, library, steps):
    """Trains on short, then on long documents; returns the points of a curve."""
    curve, done = [], 0
    for length, batch_size, part in STAGES:
        test = library.documents(HELD_OUT, length, seed=1)
        some = max(1, int(steps * part) // EVALUATIONS)
        # traced anew for each length: XLA compiles layers only if they know the length
        model.compile(model.optimizer, model.loss, metrics=["accuracy"])
        for _ in range(EVALUATIONS):
            # a new seed each time, so documents differ; all models see the same ones
            documents = library.documents(
                some * batch_size, length, seed=2 + done, held_out=False
            )
            model.fit(*documents, batch_size=batch_size, shuffle=False, verbose=2)
            _, accuracy = model.evaluate(*test, batch_size=batch_size, verbose=0)
            done += some
            curve.append((done, accuracy))
            print(f"{done:5} steps, {length:,} words: accuracy {accuracy:.3f}")
    return curve


if __name__ == "__main__":
    trials.command(main)
