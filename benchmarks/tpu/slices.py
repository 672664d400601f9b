"""TPU slices that `tpu_configs` names."""

import dataclasses

# Share of a chip's memory that a program may fill: the runtime needs some, too.
USABLE = 0.95


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips of one kind with a replica each, and the memory available to the compiler.

    `topology` and `chip_config` are the TPU compiler's names for a slice with at least
    these chips, and for a mode of the chips.
    """

    topology: str
    replicas: int
    gib_per_chip: float
    chip_config: str = "default"

    def fits(self, memory):
        """Returns True if a `Memory` fits; the compiler accepts some that do not."""
        return memory.total < USABLE * self.gib_per_chip * 2**30


# Google Cloud's names: v4 and v5p count cores, and each chip has two, which run as one;
# v5e and v6e count chips.
SLICES = {
    "v5e-1": Slice("v5e:2x2", 1, 15.75),
    "v5e-4": Slice("v5e:2x2", 4, 15.75),
    "v5e-8": Slice("v5e:2x4", 8, 15.75),
    "v6e-8": Slice("v6e:2x4", 8, 31.25),
    "v4-8": Slice("v4:2x2x1", 4, 30.75, "megacore"),
    "v4-32": Slice("v4:2x2x4", 16, 30.75, "megacore"),
    "v5p-8": Slice("v5p:2x2x1", 4, 95.74),
}
# For one long sequence, cut into a slice for each chip.
SLICES_OF_SEQUENCES = {"v5e-16": Slice("v5e:4x4", 16, 15.75)}
