"""Trains small language models for equal time on a GPU; writes models.json.

    python -m benchmarks.gpu.models [--rows default ...] [--seconds 60]
        [--output runs/gpu]

Models of 6 blocks, 8 heads of size 64 and a width of 512 predict bytes of Python's
standard library, 2 sequences of 8,192 a step, by `fit` in `mixed_bfloat16`. Measures
tokens a second, bits of held-out files, memory, and tokens a second of `generate`. Rows
of the file are not measured again.
"""

import itertools
import time

import keras
import numpy as np

import keras_performer
from benchmarks import runner
from benchmarks.gpu import layers
from benchmarks.learning import tasks
from keras_performer.layers import LocalAttention

BATCH, LENGTH, HELD_OUT = 2, 8192, 16
SIZES = {"num_layers": 6, "num_heads": 8, "hidden_dim": 512}
LOCAL = {"num_heads": 8, "key_dim": 64, "sliding_window": 64, "causal": True}
# Arguments of `PerformerLM` by row: the default, and its controls.
ROWS = {
    "default": lambda: {},
    "no gate": lambda: {"forget_gate": False},
    "local, gate": lambda: {"attention": LocalAttention(**LOCAL, forget_gate=True)},
    "local": lambda: {"attention": LocalAttention(**LOCAL)},
    "exact, gate": lambda: {"attention": "exact"},
    "no attention": lambda: {"attention": "none"},
}
# Steps of an epoch: time is read after each.
STEPS = 10
# `generate` makes so many tokens for each of some prompts.
PROMPTS, PROMPT, GENERATED = (1, 16), 64, 256


class Clock(keras.callbacks.Callback):
    """Ends training after `seconds`; counts steps and time after the first epoch."""

    def __init__(self, seconds):
        super().__init__()
        self.wanted, self.steps, self.seconds = seconds, 0, 0.0

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter()
        if epoch == 0:
            self.begin = now
            return
        self.steps, self.seconds = STEPS * epoch, now - self.begin
        self.model.stop_training = self.seconds >= self.wanted


def main(argv=None):
    more = dict(rows=[str], seconds=60.0, output=runner.RUNS / "gpu")
    options = runner.options(__doc__, argv, {"rows": ROWS}, **more)
    keras.config.set_dtype_policy("mixed_bfloat16")
    path = options.output / "models.json"
    results = runner.read(path) or {**layers.environment(), "rows": []}
    there = [found["row"] for found in results["rows"]]
    cases = [{"row": row} for row in options.rows or ROWS if row not in there]
    runner.add_rows(
        path, results, cases, lambda case: trained(case["row"], options.seconds)
    )


def trained(row, seconds):
    """Trains the model of a row; returns its figures."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    layers.peak_bytes()
    begin = time.perf_counter()
    model = keras_performer.PerformerLM(
        tasks.BYTES, max_length=LENGTH, **SIZES, **ROWS[row]()
    )
    model.compile(
        keras.optimizers.Adam(1e-3, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    clock, drawn = Clock(seconds), batches("training", 0)
    model.train_on_batch(*next(drawn))
    started = time.perf_counter() - begin
    options = dict(steps_per_epoch=STEPS, shuffle=False, verbose=0)
    model.fit(drawn, epochs=10_000, callbacks=[clock], **options)
    held_out = itertools.islice(batches("held out", 1), HELD_OUT)
    loss = [model.test_on_batch(*batch) for batch in held_out]
    return {
        "first_step": round(started, 1),
        "steps": clock.steps,
        "seconds": round(clock.seconds, 1),
        "tokens_per_second": round(clock.steps * BATCH * LENGTH / clock.seconds),
        "bits": round(float(np.mean(loss)) / np.log(2), 4),
        "parameters": model.count_params(),
        "peak_bytes": layers.peak_bytes(),
        "generated_per_second": {} if "exact" in row else generated(model),
    }


def batches(part, seed):
    random = np.random.default_rng(seed)
    while True:
        yield tasks.draw_sources(part, LENGTH, random, BATCH)[:2]


def generated(model):
    """Returns the tokens a second of `generate` for some numbers of prompts."""
    random, rates = np.random.default_rng(2), {}
    for count in PROMPTS:
        prompts = tasks.draw_sources("held out", PROMPT, random, count)[0]
        for _ in range(2):  # the first call traces
            begin = time.perf_counter()
            keras_performer.generate(model, prompts, PROMPT + GENERATED, verbose=0)
            spent = time.perf_counter() - begin
        rates[count] = round(count * GENERATED / spent)
    return rates


if __name__ == "__main__":
    main()
