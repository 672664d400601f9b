"""Times training steps of layers on a GPU, in TensorFlow; writes layers.json.

    python -m benchmarks.gpu.layers [--rows features window ...] [--minutes 10]
        [--output runs/gpu]

A case that the file has is not measured again. The layer has 8 heads of size 64, 256
random features and a width of 512, in `mixed_bfloat16`; a step is the gradients of its
input and of all its weights.
"""

import statistics
import time

import keras
import tensorflow as tf

import keras_performer
from benchmarks import runner
from keras_performer.layers import LocalAttention

NUM_HEADS, KEY_DIM, WINDOW = 8, 64, 64
WIDTH = NUM_HEADS * KEY_DIM
# A round is the mean of the calls that fit in SECONDS, at most CALLS.
SECONDS, CALLS, ROUNDS = 0.2, 20, 5
# Options of `PerformerAttention` by row.
FEATURES = {
    "features": {},
    "features, gate": {"forget_gate": True},
    "features, window": {"exact_window": WINDOW},
    "features, window, gate": {"exact_window": WINDOW, "forget_gate": True},
}
# Options of `LocalAttention` by row.
LOCAL = {"window": {}, "window, gate": {"forget_gate": True}}
EXACT = "exact, Keras"
ROWS = *FEATURES, *LOCAL, EXACT
# "graph": TensorFlow runs the step, and XLA compiles attention by itself.
# "xla": XLA compiles the whole step, as `fit` does by default on a GPU.
MODES = "xla", "graph"
CAUSAL = {"causal": True, "bidirectional": False}
# Sequences x tokens: the same number of tokens, then more.
SIZES = (16, 4096), (1, 65_536), (64, 1024), (4, 16_384), (1, 262_144)
# TensorFlow aborts where the weights of exact attention have 2^31 numbers or more.
EXACT_SIZES = (64, 1024), (8, 4096), (1, 8192)
# Sizes of rows that have others than the first two.
OF_ROW = {"features": SIZES, EXACT: EXACT_SIZES}
# Entries of a case.
FIELDS = "row", "form", "mode", "batch", "length"


def main(argv=None):
    more = dict(rows=[str], minutes=10.0, output=runner.RUNS / "gpu")
    options = runner.options(__doc__, argv, {"rows": ROWS}, **more)
    end = time.monotonic() + 60 * options.minutes
    path = options.output / "layers.json"
    results = runner.read(path) or {**environment(), "rows": []}
    # errors are tried again
    results["rows"] = [row for row in results["rows"] if "error" not in row]
    keras.config.set_dtype_policy("mixed_bfloat16")
    there = [
        {name: row[name] for name in FIELDS}
        for row in results["rows"]
        if "chunk" not in row  # stored rows with older block sizes
    ]
    missing = (case for case in cases(options.rows) if case not in there)
    runner.add_rows(path, results, until(end, missing), measured)


def until(end, cases):
    """Yields cases while there is time."""
    for case in cases:
        if time.monotonic() < end:
            yield case
        else:
            print("No time is left for", case, flush=True)


def environment():
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return {
        "device": details.get("device_name", runner.machine()),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_performer": keras_performer.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def cases(rows=None):
    """Yields the cases of `layers.json`, those of most interest first."""
    for mode in MODES:
        for size in dict.fromkeys(
            (*SIZES[: 2 if mode == "graph" else None], *EXACT_SIZES)
        ):
            for row in ROWS:
                if size in OF_ROW.get(row, SIZES[:2]) and row in (rows or ROWS):
                    for form in CAUSAL:
                        yield dict(zip(FIELDS, (row, form, mode, *size)))


def measured(case):
    """Returns times and memory of a case, or its error."""
    keras.utils.clear_session()
    shape = case["batch"], case["length"], WIDTH
    x = tf.random.stateless_normal(shape, (0, 1), dtype=tf.bfloat16)
    try:
        begin = time.perf_counter()
        step = step_of(layer_of(case), case["mode"] == "xla")
        step(x)
        tf.test.experimental.sync_devices()
        first = time.perf_counter() - begin
        return {"first_call": round(first, 2), **times_and_memory(step, x)}
    except (tf.errors.OpError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def layer_of(case):
    row, causal = case["row"], CAUSAL[case["form"]]
    if row == EXACT:
        return KerasAttention(causal)
    options = dict(num_heads=NUM_HEADS, key_dim=KEY_DIM, causal=causal)
    if row in LOCAL:
        return LocalAttention(**options, sliding_window=WINDOW, **LOCAL[row])
    return keras_performer.PerformerAttention(**options, **FEATURES[row])


class KerasAttention(keras.layers.Layer):
    """Exact self-attention of Keras with one input, like the other layers."""

    def __init__(self, causal):
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
        self.causal = causal

    def call(self, x, training=None):
        return self.attention(x, x, use_causal_mask=self.causal, training=training)


def step_of(layer, jit_compile):
    """Returns a function of x: the gradients of x and of all weights."""
    layer(tf.zeros((1, 8, WIDTH), tf.bfloat16))
    weights = [weight.value for weight in layer.trainable_weights]

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
        return tape.gradient(loss, [x, *weights])

    return step


def times_and_memory(step, *arguments):
    """Returns the mean milliseconds of calls for each round, and the peak of memory."""

    def time_of(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            step(*arguments)
        tf.test.experimental.sync_devices()
        return (time.perf_counter() - begin) / calls

    peak_bytes()
    time_of(1)
    calls = min(max(int(SECONDS / time_of(1)), 1), CALLS)
    rounds = [round(1e3 * time_of(calls), 3) for _ in range(ROUNDS)]
    found = {"ms": statistics.median(rounds), "rounds": rounds}
    return {**found, "peak_bytes": peak_bytes()}


def peak_bytes():
    """Returns the peak of the GPU's memory since the last call; `None` on a CPU."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    return peak


if __name__ == "__main__":
    main()
