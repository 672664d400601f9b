"""What was to be reached, and whether it was."""

from typing import NamedTuple

from benchmarks.results import NAMES, ratio

LENGTHS = (4096, 16384)
OURS = "softmax"


class Target(NamedTuple):
    """`ours` / `peer`, or our share of the arithmetic floor where there is no peer."""

    label: str
    mode: str
    ours: dict
    peer: dict | None
    limits: tuple  # at LENGTHS

    def value(self, results, length):
        ours = self.our_case(length)
        if self.peer is None:
            return results.share_of_floor(**ours)
        return ratio(results.seconds(**ours), results.seconds(**self.peer_case(length)))

    def value_of_operations(self, results, length):
        """The value if attention were its operations one after another; or `None`."""
        ours = self.our_case(length)
        if self.peer is None:
            return results.share_of_operations(**ours)
        if self.peer["contender"] == OURS:
            return None
        operations = results.seconds_of_operations(**ours)
        return ratio(operations, results.seconds(**self.peer_case(length)))

    def our_case(self, length):
        return {"contender": OURS, "mode": self.mode, "length": length, **self.ours}

    def peer_case(self, length):
        return {**self.ours, "mode": self.mode, "length": length, **self.peer}

    def reached(self, value, limit):
        return value >= limit if self.peer is None else value <= limit

    def missing(self, results, length):
        """Why there is no value."""
        peer = self.peer and results.reason(**self.peer_case(length))
        return results.reason(**self.our_case(length)) or peer or "not measured"


def layers(form, contender, limits):
    """Targets of the layer against a peer; `limits` by mode."""
    pytorch = {"mode": "graph"} if contender == "performer-pytorch" else {}
    peer = {"contender": contender, **pytorch}
    label = f"{form}, ours / {NAMES[contender]}"
    return [
        Target(label, mode, {"form": form}, peer, pair) for mode, pair in limits.items()
    ]


def shares(form, step, mode, least, option=""):
    ours = {"form": form, "step": step, "part": "attention"}
    ours["contender"] = OURS + option
    label = f"{form}, share of the floor, attention alone, {step}{option}"
    return Target(label, mode, ours, None, (least, least))


EXACT = {"xla": (0.2, 0.1), "graph": (0.2, 0.1)}
KERNEL = {"xla": (0.55, 0.5), "graph": (0.6, 0.5)}
PYTORCH = {"xla": (0.6, 0.6), "graph": (0.8, 0.8)}
TARGETS = [
    *layers("bidirectional", "KernelAttention exp", KERNEL),
    *layers("causal", "KernelAttention exp", {"xla": (0.5, 0.45)}),
    *layers("bidirectional", "performer-pytorch", PYTORCH),
    *layers("causal", "performer-pytorch", {"xla": (0.15, 0.08)}),
    *layers("bidirectional", "exact", EXACT),
    *layers("causal", "exact", EXACT),
    *(
        Target(
            "ours, causal / bidirectional",
            mode,
            {"form": "causal"},
            {"contender": OURS, "form": "bidirectional"},
            (limit, limit),
        )
        for mode, limit in (("xla", 1.5), ("graph", 2.0))
    ),
    shares("bidirectional", "forward", "xla", 0.6),
    shares("bidirectional", "training", "xla", 0.6),
    shares("causal", "forward", "xla", 0.6),
    shares("causal", "training", "xla", 0.6),
    shares("bidirectional", "forward", "graph", 0.5),
    shares("bidirectional", "forward", "graph", 0.5, ", jit_compile=True"),
    shares("causal", "forward", "graph", 0.3),
    shares("causal", "forward", "graph", 0.3, ", jit_compile=True"),
]
