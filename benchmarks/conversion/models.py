"""The models that there are, by the names of their packages."""

from benchmarks.conversion import antiberty, rxnmapper

MODELS = {module.PACKAGE: module for module in (rxnmapper, antiberty)}
