"""Sequences of regions of related strains, one strain last."""

import functools

import numpy as np

from benchmarks.long_data.fasta import UNKNOWN, kmers, read_folder

# Two strains are related where they share so many of the anchors that are tried.
ANCHOR, TRIED, SHARED = 24, 400, 0.05
# Strains in a sequence at most, and about how many bases a region has.
STRAINS, REGION = 4, 256
# One position of so many may be an anchor.
SPARSE = 16
# A spreading of numbers over 64 bits (Knuth's multiplicative hashing).
SPREAD = 0x9E3779B97F4A7C15


class Strains:
    """Genomes by name, as `read_folder` has them, and where two of them are alike.

    Strains with `held_out` in their name, in any case, are only measured.
    """

    def __init__(self, genomes, held_out):
        self.genomes = genomes
        self.anchors = {name: anchors(ids) for name, ids in genomes.items()}
        hidden = [name for name in genomes if held_out.lower() in name.lower()]
        seen = [name for name in genomes if name not in hidden]
        self.relatives = {
            "training": {name: self.related(name, seen) for name in seen},
            "held out": {name: self.related(name, seen) for name in hidden},
        }
        for part, relatives in self.relatives.items():
            if not any(relatives.values()):
                raise ValueError(
                    "held_out must be a part of the name of a file whose strain has a "
                    "relative in the others, of which two must be related. "
                    f"Received: held_out={held_out!r}, files={list(genomes)}, with no "
                    f"relatives for {part}"
                )

    def related(self, name, others):
        """The others that share anchors with a strain."""
        codes, _ = self.anchors[name]
        tried = np.random.default_rng(0).choice(codes, TRIED)
        return [
            other
            for other in others
            if other != name and self.begins(other, tried)[1].mean() > SHARED
        ]

    def regions(self, part, random, length):
        """Regions of relatives, and of a strain of the part: lists of arrays.

        They have `length` bases together, or some more.
        """
        relatives = {name: of for name, of in self.relatives[part].items() if of}
        name = random.choice(list(relatives))
        others = random.permutation(relatives[name])[: STRAINS - 1]
        size = min(random.integers(REGION // 2, 2 * REGION), length // 4)
        codes, _ = self.anchors[name]
        theirs, own = [], []
        while (len(theirs) + len(own)) * (size + 1) < length:
            code = codes[random.integers(len(codes))]
            *found, of_name = (self.region(one, code, size) for one in (*others, name))
            found = [region for region in found if region is not None]
            if found and of_name is not None:
                theirs += found
                own.append(of_name)
        return theirs, own

    def region(self, name, code, size):
        """So many bases of a strain from an anchor on; `None` if it has not as many."""
        start, there = self.begins(name, code)
        region = self.genomes[name][start : start + size]
        return region if there and len(region) == size else None

    def begins(self, name, codes):
        """Starts of anchors with these codes in a strain, and a bool for each found."""
        theirs, places = self.anchors[name]
        at = np.searchsorted(theirs[:-1], codes)
        return places[at], theirs[at] == codes


def anchors(ids):
    """Codes of k-mers that occur once, sorted, and where each begins; a sixteenth."""
    codes = kmers(ids, ANCHOR)
    mixed = codes.astype(np.uint64) * np.uint64(SPREAD) >> np.uint64(40)
    places = np.flatnonzero((codes >= 0) & (mixed % SPARSE == 0))
    unique, first, counts = np.unique(
        codes[places], return_index=True, return_counts=True
    )
    once = counts == 1
    return unique[once], places[first[once]] - ANCHOR + 1


@functools.cache
def read_strains(folder, held_out):
    return Strains(read_folder(folder), held_out)


def draw(folder, held_out, part, length, random, batch_size):
    """Regions of relatives in a random order, and then those of a strain of the part.

    Each begins after an N. What is held out has weights for the last strain alone.
    """
    strains = read_strains(folder, held_out)
    rows = np.full((batch_size, length + 1), UNKNOWN, np.int32)
    weights = np.ones((batch_size, length), np.float32)
    for row, weight in zip(rows, weights, strict=True):
        theirs, own = strains.regions(part, random, length)
        pieces = [
            np.append(UNKNOWN, regions[index])
            for regions in (theirs, own)
            for index in random.permutation(len(regions))
        ]
        joined = np.concatenate(pieces)[: length + 1]
        row[: len(joined)] = joined
        if part == "held out":
            weight[: sum(map(len, pieces[: len(theirs)]))] = 0
    return rows[:, :-1], rows[:, 1:], weights
