"""Train a language model of bytes on a text that is cut over several devices.

    python -m examples.long_text                        # 65,536 bytes at once, on a CPU
    python -m examples.long_text --strategy mirrored    # cut over all GPUs of a machine
    python -m examples.long_text --config tpu_configs/v5e-16.yaml

The last command trains on 16,777,216 bytes at once, on sixteen TPU v5e chips. Each
sequence is one training step, and all devices share it: each holds a slice. The
program keeps the last sequence of the file for evaluation. It writes a checkpoint
after each epoch, and the same command continues from there after an interruption.
`model.keras`, in `output_dir`, is a model for one device.

The example shows how to train. Nobody has trained a model with it for long.
"""

import dataclasses
import math
import pathlib
from typing import Literal

import keras
import tensorflow as tf

import keras_performer
from examples import text
from examples.imagenet64 import multi_worker, strategies
from examples.imagenet64.config import DTYPE_POLICIES


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of one run.

    Args:
        file: text to train on, also on gs://, of at least two sequences; null: modules
            of Python's standard library, 5 MB.
        output_dir: folder of this machine for the model.
        checkpoint_dir: folder of checkpoints, also on gs://; null: inside output_dir.
        strategy: devices that hold slices. none: one device; mirrored: all GPUs of this
            machine (its CPUs if it has none); multi_worker: the machines that TF_CONFIG
            names; tpu: a TPU.
        tpu: local for the TPU of this machine, or the name or the address of one.
        dtype_policy: dtype policy of Keras.
        length: bytes of a sequence, a multiple of the number of devices.
        num_layers: number of blocks.
        num_heads: attention heads of each block.
        hidden_dim: width of the model, a multiple of num_heads.
        learning_rate: learning rate of Adam.
        epochs: passes over the file; a resumed run counts earlier epochs.
    """

    file: str | None = None
    output_dir: str = "runs/long_text"
    checkpoint_dir: str | None = None
    strategy: Literal["none", "mirrored", "multi_worker", "tpu"] = "none"
    tpu: str = "local"
    dtype_policy: Literal[DTYPE_POLICIES[:2]] = "float32"
    length: int = 2**16
    num_layers: int = 2
    num_heads: int = 4
    hidden_dim: int = 64
    learning_rate: float = 1e-3
    epochs: int = 1


def main(argv=None):
    """Trains a model; returns its bits per byte of the held-out sequence."""
    config = parse(argv)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(config.dtype_policy)
    strategy = keras_performer.sequence_parallel(strategies.start(config))
    is_chief = multi_worker.is_chief(strategy)
    with strategy.scope():
        model = make_model(config)
    output_dir = pathlib.Path(config.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    every = sequences(config.file or sources(output_dir), config.length)
    checkpoints = config.checkpoint_dir or str(output_dir / "checkpoint")
    model.fit(
        every.take(len(every) - 1),
        epochs=config.epochs,
        callbacks=[multi_worker.backup_and_restore(strategy, checkpoints)],
        verbose="auto" if is_chief else 0,
        shuffle=False,
    )
    bits = model.evaluate(every.skip(len(every) - 1), verbose=0) / math.log(2)
    if is_chief:
        model.save(output_dir / "model.keras")
        print(f"{bits:.3f} bits per held-out byte; wrote {output_dir}")
    return bits


def parse(argv=None):
    """Reads flags and YAML files into a `Config`; later ones win."""
    import jsonargparse

    return jsonargparse.CLI(Config, args=argv, as_positional=False)


def make_model(config):
    """Returns a compiled model; call it in the scope of the strategy."""
    model = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=config.length,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        hidden_dim=config.hidden_dim,
        recompute="block",
        seed=0,
    )
    model.compile(
        keras.optimizers.Adam(config.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def sources(folder):
    """Writes modules of the standard library into one file; returns its path."""
    path = folder / "text.bin"
    path.write_bytes(text.read_sources()[0].tobytes())
    return str(path)


def sequences(path, length):
    """Returns a dataset of all whole sequences of a file, and their next bytes.

    Each host of a TPU reads the file itself, so no step is Python code.
    """
    record, size = length + 1, tf.io.gfile.stat(path).length
    count, rest = divmod(size, record)
    if count < 2:
        raise ValueError(
            f"file must have two sequences of {record} bytes, one of them for "
            f"evaluation: take a longer text or a smaller length. Received: {path} of "
            f"{size} bytes"
        )

    def pair(read):
        read = tf.cast(tf.io.decode_raw(read, tf.uint8), tf.int32)
        read = tf.ensure_shape(read[tf.newaxis], (1, record))
        return read[:, :-1], read[:, 1:]

    dataset = tf.data.FixedLengthRecordDataset(path, record, footer_bytes=rest)
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).map(pair)


if __name__ == "__main__":
    main()
