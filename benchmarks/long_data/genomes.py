"""Predicts the next base where a relative of the strain has been seen before.

    python -m benchmarks.long_data.genomes --fasta FOLDER           # 2,048 bases
    python -m benchmarks.long_data.genomes --fasta FOLDER --full    # to 16,384; hours

A sequence has regions of related strains in a random order, and then the same regions
of one strain more, which copy what came before but for what differs between strains.
One strain is held out, and its regions are measured: inside of repeats, where the last
24 bases stood before beyond what local attention reaches, and outside of them.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from benchmarks.learning import models, tasks
from benchmarks.long_data import strains, study
from benchmarks.long_data.fasta import BASES, UNKNOWN, in_repeats

LENGTHS, FULL_LENGTHS = (2048,), (512, 2048, 4096, 16384)
# Bases that are held out.
HELD_OUT = 2**16
# One head, as an address needs many numbers.
KEY_DIM = 64
# So many bases that stood before make a repeat; so many are an address, and so few
# have a vector of their own.
REPEAT, ADDRESS, FEW = 24, 12, 4
PARTS = "inside of repeats", "outside", "all"
# Tokens that local attention in all blocks reaches.
REACH = models.NUM_LAYERS * study.WINDOW
SIGNS = 32


class BasesBefore(keras.layers.Layer):
    """A base, the last four, and addresses by which a copy of what comes is found.

    One base of four is no address. The last 12 are: they become a vector of random
    signs. A query looks for the 12 bases up to its token; a key that holds the base to
    copy has the 12 before its token. Models without attention have both, too.
    """

    def __init__(self, vocabulary_size, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.base = vocabulary_size
        # as large as the addresses, so that a query finds it beside them
        as_large = keras.initializers.RandomNormal(stddev=1.0)
        self.own = keras.layers.Embedding(vocabulary_size, hidden_dim, as_large)
        self.few = keras.layers.Embedding(vocabulary_size**FEW, hidden_dim)
        self.here, self.before = (
            keras.layers.Dense(hidden_dim, use_bias=False) for _ in range(2)
        )
        odd = 1 + 2 * np.random.default_rng(0).integers(2**30, size=SIGNS)
        self.factors = odd.astype(np.int32)

    def build(self, input_shape):
        self.own.build(input_shape)
        self.few.build(input_shape)
        self.here.build((*input_shape, SIGNS))
        self.before.build((*input_shape, SIGNS))

    def call(self, inputs):
        address = self.signs(self.last(inputs, ADDRESS))
        before = tf.pad(address[:, :-1], ((0, 0), (1, 0), (0, 0)))
        bases = self.own(inputs) + self.few(self.last(inputs, FEW))
        return bases + self.here(address) + self.before(before)

    def last(self, inputs, count):
        """The last so many bases at each token, as one number."""
        padded = tf.pad(inputs, ((0, 0), (count - 1, 0)), constant_values=UNKNOWN)
        length = tf.shape(inputs)[1]
        return tf.add_n(
            [
                padded[:, index : index + length] * self.base ** (count - 1 - index)
                for index in range(count)
            ]
        )

    def signs(self, numbers):
        """A vector of -1 and 1 of each number, like random ones."""
        hashed = numbers[..., tf.newaxis] * self.factors
        hashed ^= tf.bitwise.right_shift(hashed, 15)
        return tf.where(hashed * self.factors < 0, -1.0, 1.0)


def main(argv=None):
    lengths = LENGTHS, FULL_LENGTHS
    more = dict(fasta=str, held_out="usa300")
    study.main(__doc__, "genomes", make_tasks, *lengths, argv, KEY_DIM, **more)


def make_tasks(length, options):
    if options.fasta is None and not options.report_only:
        raise SystemExit("--fasta must name a folder of FASTA files.")
    of = options.fasta, options.held_out
    training, hidden = (
        functools.partial(strains.draw, *of, part) for part in ("training", "held out")
    )
    return [
        study.task(
            f"genomes {length:,}",
            length,
            training,
            functools.partial(held_out, functools.partial(hidden, length), length),
            shortest=512,
            vocabulary_size=len(BASES),
            measure="bits",
            parts=PARTS,
            embedding=BasesBefore,
            steps=800,
            learning_rate=3e-3,
        )
    ]


def held_out(draw, length):
    """Batches with weights of what is inside of repeats, of the rest, and of all."""
    batches = []
    for x, y, w in tasks.fixed(draw, max(8, HELD_OUT // length), length):
        inside = in_repeats(x, REPEAT, REACH)
        batches.append((x, y, np.stack([inside * w, ~inside * w, w])))
    return batches


if __name__ == "__main__":
    main()
