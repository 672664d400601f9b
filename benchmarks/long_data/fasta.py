"""Genomes of FASTA files, and the repeats in a sequence."""

import gzip
import lzma
import pathlib

import numpy as np

# Ids of tokens; what is not certain in a file is N.
BASES = "ACGTN"
UNKNOWN = BASES.index("N")
OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}
SUFFIXES = tuple(
    name + packed for name in (".fa", ".fasta", ".fna") for packed in OPENERS
)
CODES = np.full(256, UNKNOWN, np.uint8)
for _code, _base in enumerate(BASES):
    CODES[[ord(_base), ord(_base.lower())]] = _code


def read_folder(folder):
    """Bases of all FASTA files in a folder and those in it, by their paths there."""
    folder = pathlib.Path(folder)
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES))
    if not paths:
        raise ValueError(
            f"A folder must hold FASTA files ({', '.join(SUFFIXES)}). Received: "
            f"folder={str(folder)!r}, which holds none. benchmarks/README.md says how "
            "to get some."
        )
    return {str(path.relative_to(folder)): read(path) for path in paths}


def read(path):
    """The bases of a FASTA file as ids of `BASES`, an N between two records."""
    with OPENERS.get(path.suffix, open)(path, "rb") as file:
        start, *records = (b"\n" + file.read()).split(b"\n>")
    if start.strip() or not records:
        raise ValueError(
            "A FASTA file must begin with '>', the header of its first record. "
            f"Received: {path}, which begins with {start[1:30]!r}"
        )
    bases = [record.partition(b"\n")[2] for record in records]
    joined = b"N".join(b"".join(lines.split()) for lines in bases)
    return CODES[np.frombuffer(joined, np.uint8)]


def kmers(ids, k):
    """The k bases that end at each position of `(..., L)`, as one number; k < 32.

    It is -1 where fewer than k bases are known.
    """
    codes = np.full(ids.shape, -1, np.int64)
    count = max(0, ids.shape[-1] - k + 1)
    code, known = 0, True
    for start in range(k):
        base = ids[..., start : start + count].astype(np.int64)
        code, known = 4 * code + base, known & (base != UNKNOWN)
    codes[..., k - 1 :] = np.where(known, code, -1)
    return codes


def in_repeats(ids, k, window):
    """Tells where the last k bases stood before, beyond a window, and not within it.

    The base that followed them there is a good guess of the next one, for which local
    attention over the window, W tokens with its own, does not reach far enough. A copy
    stands beyond the window if the base to be copied does.
    """
    found = np.zeros(ids.shape, bool)
    for row, codes in zip(found, kmers(ids, k), strict=True):
        # a stable order: equal codes one after another, each after the last before it
        order = np.argsort(codes, kind="stable")
        same = np.diff(codes[order]) == 0
        last = np.full(len(codes), -1)
        last[order[1:][same]] = order[:-1][same]
        distance = np.arange(len(codes)) - (last + 1)
        row[:] = (codes >= 0) & (last >= 0) & (distance >= window)
    return found
