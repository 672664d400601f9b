"""Converts ImageNet64 archives to TFRecord shards, for fast reading and for TPUs.

    python -m examples.imagenet64.convert --source DIR --output DIR --shards 64

A record is one image: 12,288 bytes, row by row, red green blue. Training images go to
all shards in turn, so that each shard is a sample of the whole; validation images keep
their order. `dataset.json`, written last, names the version of the data. The program
needs the memory of one npz file and, for ImageNet64, 16 GB of disk.
"""

import contextlib
import json

import tensorflow as tf

from examples.imagenet64.sources import IMAGE_SHAPE, MANIFEST, open_folder


def convert(source: str, output: str, shards: int = 64):
    """Writes the shards and `dataset.json`; returns the contents of `dataset.json`.

    Args:
        source: folder with either version of ImageNet64.
        output: folder to write to, also on `gs://`; must not hold a dataset yet.
        shards: int, number of training files.
    """
    manifest = f"{output}/{MANIFEST}"
    if tf.io.gfile.exists(manifest):
        raise ValueError(
            f"output must be a folder without {MANIFEST}. Received: output={output}. "
            "Choose another folder, or delete this one first."
        )
    name, train, validation = open_folder(source)
    if not 1 <= shards <= len(train):
        raise ValueError(
            f"shards must be between 1 and the number of images, {len(train)}. "
            f"Received: shards={shards}"
        )
    tf.io.gfile.makedirs(output)
    few = -(-shards * len(validation) // len(train))  # as large as training shards
    described = {
        "name": name,
        "image_shape": IMAGE_SHAPE,
        "train": _write(output, "train", train, shards, lambda i: i % shards),
        "validation": _write(
            output, "validation", validation, few, lambda i: i * few // len(validation)
        ),
    }
    with tf.io.gfile.GFile(manifest, "w") as file:
        file.write(json.dumps(described, indent=1) + "\n")
    open_folder(output)  # raises an error if a shard has a wrong size
    return described


def _write(folder, prefix, split, num_shards, shard_of):
    names = [
        f"{prefix}-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)
    ]
    counts = dict.fromkeys(names, 0)
    index = 0
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(tf.io.TFRecordWriter(f"{folder}/{name}"))
            for name in names
        ]
        for block in range(len(split.block_sizes)):
            for image in split.read(block):
                shard = shard_of(index)
                writers[shard].write(image.tobytes())
                counts[names[shard]] += 1
                index += 1
            print(f"\r{prefix}: {index} of {len(split)} images", end="", flush=True)
    print()
    return counts


def main(argv=None):
    """Converts as the command line says."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(
        description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    parser.add_function_arguments(convert, as_group=False)
    settings = parser.parse_args(argv).as_dict()
    try:
        described = convert(**settings)
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    print(f"{described['name']}: written to {settings['output']}")


if __name__ == "__main__":
    main()
