"""Train on string quartets as sequences of notes, and continue a movement.

    python -m examples.music               # about twenty minutes on 2 cores

The scores are quartets of Haydn, Mozart, Beethoven and Schumann in the package music21.
Each note is four tokens: the time since the note before, the part, the pitch and the
duration. A sequence of 4,096 tokens has 1,024 notes. Without attention a model sees the
last eight tokens, with local attention the last 64, with `PerformerAttention` all
earlier tokens. At the end the Performer continues a held-out movement; the example
writes it as MIDI and as a picture.
"""

import math
import pathlib

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from music21 import converter, corpus, instrument, note, stream

import keras_performer
from examples import trials
from keras_performer.layers import EmbeddingLayer, LocalAttention

COMPOSERS = "haydn", "mozart", "beethoven", "schumann_robert"
INSTRUMENTS = "Violin", "Violin", "Viola", "Violoncello"
COLORS = np.array(["#0b5cab", "#2a9d8f", "#d1701c", "#7a3b8f"])
TICKS = 24  # in a quarter note: 3 are a 1/32 note, 8 a note of an eighth-note triplet
# Number of values of each field of a note, and the token of the value 0.
SIZES = np.array([4 * TICKS + 1, len(INSTRUMENTS), 128, 8 * TICKS + 1])
FIRST = np.cumsum(SIZES) - SIZES
VOCABULARY = int(SIZES.sum())
WINDOW = 64
LOCAL = LocalAttention(8, 16, sliding_window=WINDOW, causal=True, rotary=True)
ATTENTIONS = {
    "no attention": dict(attention="none"),
    "local attention": dict(attention=LOCAL),
    # a low initial gain, so that 4,000 far tokens do not outweigh the 64 near ones
    "Performer": dict(
        feature_map="taylor",
        exact_window=WINDOW,
        initial_log_gain=-3.5,
        forget_gate=False,
    ),
}


def main(steps: int = 300, output_dir: str = "runs/music", length: int = 4096):
    """Trains, and continues a movement; returns bits per held-out note, and its notes.

    Args:
        steps: optimizer steps of each model, one sequence each.
        output_dir: folder for the parsed notes, `continued.mid` and `continued.png`.
        length: tokens that a model sees at once, a multiple of 16.
    """
    if length < 16 or length % 16:
        raise ValueError(
            "length must be a multiple of 16: a quarter of it is whole notes, of 4 "
            f"tokens each. Received: length={length}"
        )
    folder = pathlib.Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    pieces = read_quartets(folder / "notes.npz")
    held_out = np.concatenate([tokens_of(notes) for notes in pieces[::8]])
    training = np.concatenate([tokens_of(x) for i, x in enumerate(pieces) if i % 8])
    print(f"{len(training):,} tokens to train on, {len(held_out):,} held out")
    sequences = random_sequences(training, steps, length)
    test = held_out[: len(held_out) // length * length].reshape(-1, length)
    bits = {}
    for name, options in ATTENTIONS.items():
        model = make_model(length, steps, **options)
        one = dict(batch_size=1, verbose=2)
        model.fit(sequences[:, :-1], sequences[:, 1:], shuffle=False, **one)
        loss = model.evaluate(test[:, :-1], test[:, 1:], **one)
        bits[name] = 4 * loss / math.log(2)
        print(f"{name}: {bits[name]:.2f} bits per held-out note")

    prompt = tokens_of(max(pieces[::8], key=len))[: length // 4]
    sampling = dict(temperature=0.9, seed=0)
    tokens = keras_performer.generate(model, prompt[np.newaxis], length, **sampling)
    continued = notes_of(tokens[0])
    write_midi(folder / "continued.mid", continued)
    figure = draw(continued, start=notes_of(prompt)[-1, 0])
    trials.save(figure, folder, "continued.png")
    return bits, continued


def read_quartets(path):
    """Returns notes of each movement; parsing takes minutes, so `path` keeps them."""
    if not path.exists():
        core, found = corpus.corpora.CoreCorpus(), {}
        files = [file for name in COMPOSERS for file in core.getComposer(name)]
        for file in files:
            score = converter.parse(file)
            if len(score.parts) == len(INSTRUMENTS):
                found[f"{len(found)} {file.parent.name} {file.name}"] = notes_in(score)
        np.savez_compressed(path, **found)
    return list(np.load(path).values())


def notes_in(score):
    """Returns the notes of a score in order: start, part, pitch, duration, `(n, 4)`."""
    notes = [
        (note.offset * TICKS, index, pitch.midi, note.quarterLength * TICKS)
        for index, part in enumerate(score.parts)
        for note in part.stripTies().flatten().notes
        for pitch in note.pitches
        if note.quarterLength  # else a grace note
    ]
    return np.array(sorted(notes)).astype(float).round().astype(int)


def tokens_of(notes):
    """Returns tokens `(4 n,)` of notes; times beyond the largest value are clipped."""
    fields = np.column_stack([np.diff(notes[:, 0], prepend=notes[0, 0]), notes[:, 1:]])
    return (np.minimum(fields, SIZES - 1) + FIRST).astype("int32").ravel()


def notes_of(tokens):
    """Returns notes of tokens; drops notes with a field out of its range."""
    fields = np.asarray(tokens).reshape(-1, 4) - FIRST
    fields = fields[((fields >= 0) & (fields < SIZES)).all(1)]
    return np.column_stack([fields[:, 0].cumsum(), fields[:, 1:]])


def random_sequences(tokens, count, length):
    """Returns sequences `(count, length)` of whole notes, each transposed at random."""
    random = np.random.default_rng(0)
    starts = 4 * random.integers(0, (len(tokens) - length) // 4, count)
    sequences = tokens[starts[:, np.newaxis] + np.arange(length)]
    sequences[:, 2::4] += random.integers(-6, 6, (count, 1))
    return sequences


class LastTokens(EmbeddingLayer):
    """Embeds each token with the seven tokens before it, together two notes."""

    def __init__(self, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.table = keras.layers.Embedding(VOCABULARY, hidden_dim)
        self.mix = keras.layers.Conv1D(hidden_dim, kernel_size=8)

    def build(self, input_shape):
        self.table.build(input_shape)
        self.mix.build((None, None, self.table.output_dim))

    def empty_state(self, batch_size):
        return tf.zeros((batch_size, 7), tf.int32)

    def call(self, inputs, state):
        tokens = tf.concat([state, inputs], 1)
        return self.mix(self.table(tokens)), (), tokens[:, -7:]


def make_model(length, steps, **options):
    """Returns a compiled causal model of 0.6 M parameters, with head size 16."""
    keras.utils.set_random_seed(0)
    model = keras_performer.PerformerLM(
        VOCABULARY,
        max_length=length,
        num_layers=2,
        num_heads=8,
        hidden_dim=128,
        position_embedding="rotary",
        embedding=LastTokens(128),
        seed=0,
        **options,
    )
    trials.compile_model(model, 2e-3, steps)
    return model


def write_midi(path, notes):
    """Writes notes as a MIDI file, a track for each instrument."""
    score = stream.Score()
    for index, name in enumerate(INSTRUMENTS):
        part = stream.Part([instrument.fromString(name)])
        for begin, _, pitch, duration in notes[notes[:, 1] == index].tolist():
            part.insert(begin / TICKS, note.Note(pitch, quarterLength=duration / TICKS))
        score.insert(0, part)
    score.write("midi", path)


def draw(notes, start):
    """Draws notes as bars over time, coloured by part, and a line at `start`."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    begin, part, pitch, duration = notes.T
    ends = begin / TICKS, (begin + duration) / TICKS
    axes.hlines(pitch, *ends, COLORS[part], linewidth=2)
    axes.axvline(start / TICKS, color="black", linewidth=0.8, linestyle="--")
    axes.set_ylabel("pitch (MIDI)")
    axes.set_xlabel("quarter notes; the model was given the notes left of the line")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    trials.command(main)
