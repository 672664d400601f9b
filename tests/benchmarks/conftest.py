"""Genomes of made-up strains."""

import numpy as np
import pytest

from benchmarks.long_data import fasta

LETTERS = np.array([*fasta.BASES])


@pytest.fixture
def strains(tmp_path):
    """Returns a folder with three strains of one species and two of another."""
    for species in range(2):
        first = np.random.default_rng(species).integers(4, size=20_000)
        for strain in range(3 - species):
            # one base in 100 differs, and each strain starts elsewhere
            bases = np.roll(first, 777 * strain)
            places = np.random.default_rng(strain).integers(20_000, size=200 * strain)
            bases[places] = (bases[places] + 1) % 4
            text = "".join(LETTERS[bases])
            (tmp_path / f"{species}_{strain}.fa").write_text(f">one\n{text}\n")
    return tmp_path
