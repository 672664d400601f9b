"""The TPU slices that `tpu_configs` names."""

import dataclasses

# What a program may fill of a chip's memory: the runtime needs some, too.
USABLE = 0.95


@dataclasses.dataclass(frozen=True)
class Slice:
    """Some chips of one kind, a replica each, and the memory that the compiler finds.

    `topology` and `chip_config` are the TPU compiler's names of a slice with at least
    these chips, and of a way to use a chip.
    """

    topology: str
    replicas: int
    gib_per_chip: float
    chip_config: str = "default"

    def fits(self, memory):
        """True if a `Memory` fits; the compiler accepts programs that do not."""
        return memory.total < USABLE * self.gib_per_chip * 2**30


# By the names that Google Cloud gives them: v4 and v5p count cores, of which a chip has
# two that run as one; v5e and v6e count chips.
SLICES = {
    "v5e-1": Slice("v5e:2x2", 1, 15.75),
    "v5e-4": Slice("v5e:2x2", 4, 15.75),
    "v5e-8": Slice("v5e:2x4", 8, 15.75),
    "v6e-8": Slice("v6e:2x4", 8, 31.25),
    "v4-8": Slice("v4:2x2x1", 4, 30.75, "megacore"),
    "v4-32": Slice("v4:2x2x4", 16, 30.75, "megacore"),
    "v5p-8": Slice("v5p:2x2x1", 4, 95.74),
}
