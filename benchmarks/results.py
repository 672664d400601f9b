"""What was measured, looked up by case."""

import statistics

from benchmarks import floor

# What the tables and pictures call the contenders.
NAMES = {
    "softmax": "ours, softmax",
    "softmax, jit_compile=False": "ours, softmax, jit_compile=False",
    "softmax, jit_compile=True": "ours, softmax, jit_compile=True",
    "relu": "ours, relu",
    "favor+": "ours, favor+",
    "returns V": "X(OPT), returns V",
    "exact": "Keras MultiHeadAttention",
    "KernelAttention exp": "KernelAttention exp",
    "KernelAttention relu": "KernelAttention relu",
    "scaled_dot_product_attention": "PyTorch scaled_dot_product_attention",
    "performer-pytorch": "performer-pytorch",
    "key-value cache": "exact, key-value cache",
}


class Results:
    """Medians of `results.json`, and the shares of `operations.json`.

    A case is given by keywords; those left out are the layer's training step in
    float32. Where nothing was measured there is `None`, and `reason` says why.
    """

    def __init__(self, results, operations=None):
        self._operations = operations or {}
        self._rows = {_key(**row): row for row in results["rows"]}
        self._memory = {_key(**row): row for row in results["memory"]}

    @property
    def rows(self):
        return self._rows.values()

    @property
    def memory_rows(self):
        return self._memory.values()

    def lengths(self, memory=False):
        rows = self._memory if memory else self._rows
        return sorted({row["length"] for row in rows.values()})

    def contenders(self):
        """Pairs (contender, mode) in the order of measurement, without `matmul`."""
        pairs = [(row["contender"], row["mode"]) for row in self.rows]
        return [pair for pair in dict.fromkeys(pairs) if pair[0] != "matmul"]

    def row(self, **case):
        return self._rows.get(_key(**case), {})

    def reason(self, **case):
        return self.row(**case).get("reason")

    def seconds(self, **case):
        times = self.row(**case).get("times")
        return statistics.median(times) if times else None

    def peak_bytes(self, **case):
        return self._memory.get(_key(**case), {}).get("peak_bytes")

    def share_of_floor(self, **case):
        """How much of our time its arithmetic alone would take."""
        seconds, product = self.seconds(**case), self._product_seconds(**case)
        if case["contender"] not in floor.OURS or None in (seconds, product):
            return None
        return floor.seconds(self.row(**case), product) / seconds

    def share_of_operations(self, form, step="training", **case):
        """The share of the floor that softmax attention's operations alone reach."""
        return self._operations.get(f"{form}, {step}", {}).get("faster")

    def seconds_of_operations(self, **case):
        """The layer's time if softmax attention were its operations alone."""
        share = self.share_of_operations(**case)
        dense = self.seconds(**{**case, "contender": "returns V"})
        product = self._product_seconds(**case)
        if None in (share, dense, product):
            return None
        attention = {"step": "training", **case, "part": "attention"}
        return dense + floor.seconds(attention, product) / share

    def _product_seconds(self, **case):
        """The time of the large product that took turns with the case."""
        product = {"contender": "matmul", "mode": "graph", "dtype": "float32"}
        return self.seconds(**{**case, **product})


def _key(
    *,
    contender,
    form,
    mode,
    length,
    part="layer",
    step="training",
    dtype="float32",
    **measured,
):
    return contender, form, mode, length, part, step, dtype


def ratio(numerator, denominator):
    if numerator is None or denominator is None:
        return None
    return numerator / denominator
