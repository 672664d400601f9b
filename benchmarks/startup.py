"""Measures the time to the end of the first training step, and the size of its graph.

    python -m benchmarks.startup [--repeats 3] [--threads 2] [--xla] [--quick]
        [--report-only] [--output runs/startup]

Each measurement has a new process. After imports and the first operations of
TensorFlow, the clock runs from the construction of a model to the end of `fit` with one
batch of one example. Rows take turns; a figure is the least of its repeats. Nodes are
counted in the graph of the train step and in functions that it calls. One layer trains
with SGD, a causal `PerformerLM` with Adam. Writes results.json and tables.md.
"""

import functools

import keras
import tensorflow as tf

from benchmarks import runner, tables, worker
from benchmarks.contenders import ours
from keras_performer import PerformerLM
from keras_performer.layers import ExactAttention, PerformerAttention

SIZES = {"width": 256, "heads": 16, "length": 512}
VOCABULARY, WINDOW = 256, 64
EXACT = "exact"
Causal = functools.partial(PerformerAttention, causal=True)
LAYERS = {
    "bidirectional": PerformerAttention,
    "causal": Causal,
    "causal, window": functools.partial(Causal, exact_window=WINDOW),
    "bidirectional, window": functools.partial(PerformerAttention, exact_window=WINDOW),
    EXACT: ExactAttention,
}
MODELS = {
    "window, gate": PerformerLM,
    "window": functools.partial(PerformerLM, forget_gate=False),
    "plain": functools.partial(PerformerLM, exact_window=None, forget_gate=False),
    f"{EXACT}, gate": functools.partial(PerformerLM, attention=EXACT),
    EXACT: functools.partial(PerformerLM, attention=EXACT, forget_gate=False),
}


def main(argv=None):
    more = dict(repeats=3, threads=2, xla=False, quick=False, report_only=False)
    options = runner.options(__doc__, argv, **more, output=runner.RUNS / "startup")
    cases = [
        {"mode": mode, "depth": depth, "name": name, **SIZES}
        for mode in (["graph", "xla"] if options.xla else ["graph"])
        for depth in ([0, 2] if options.quick else [0, 2, 12])  # 0: a single layer
        for name in (MODELS if depth else LAYERS)
    ]
    path = options.output / "results.json"
    if not options.report_only:
        measure(cases, options.repeats, options.threads, path)
    print(runner.write_page(options.output, report(runner.read(path))))


def measure(cases, repeats, threads, path):
    """Measures cases in turns, and writes the file after each."""
    described = runner.describe(threads)
    rows = [{**case, "times": []} for case in cases]
    results = {"machine": described, "rows": rows}
    for _ in range(repeats):
        for case, row in zip(cases, rows):
            made = runner.in_new_process(first_step, case, threads)
            row["nodes"], results["versions"], seconds = made
            row["times"].append(seconds)
            runner.note_load(described)
            runner.save(path, results)
            print(*case.values(), f"{seconds:.1f} s, {row['nodes']} nodes", flush=True)


def first_step(case, threads):
    """Returns nodes, versions and seconds of a training step, in a new process."""
    worker.pin(threads)  # before TensorFlow counts the cores
    versions = ours.start(threads)
    keras.utils.set_random_seed(0)
    data, made = batch(case), []

    def step():
        made.append(language_model(case) if case["depth"] else one_layer(case))
        made[0].fit(*data, batch_size=1, steps_per_epoch=1, verbose=0)

    seconds = worker.seconds(step)
    [model] = made
    traced = tf.function(model.train_step, jit_compile=model.jit_compile)
    graph = traced.get_concrete_function(data).graph.as_graph_def()
    bodies = [graph.node, *(each.node_def for each in graph.library.function)]
    return sum(map(len, bodies)), versions, seconds


def batch(case):
    """Samples inputs and targets."""
    shape = 1, case["length"]
    if case["depth"]:
        x = keras.random.randint(shape, 0, VOCABULARY)
    else:
        x = keras.random.normal((*shape, case["width"]))
    return x, x


def one_layer(case):
    layer = LAYERS[case["name"]](case["heads"], case["width"] // case["heads"])
    x = keras.Input((case["length"], case["width"]))
    model = keras.Model(x, layer(x))
    model.compile("sgd", "mse", jit_compile=case["mode"] == "xla")
    return model


def language_model(case):
    model = MODELS[case["name"]](
        VOCABULARY,
        num_layers=case["depth"],
        num_heads=case["heads"],
        hidden_dim=case["width"],
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=case["mode"] == "xla")
    return model


def report(results):
    sizes = ", ".join(f"{name} {results['rows'][0][name]}" for name in SIZES)
    libraries = tables.libraries(results["versions"])
    return [
        "# Start-up",
        runner.said(results["machine"], libraries)
        + f" Commit {results['machine']['commit']}. {sizes}, windows of {WINDOW}.",
        table.__doc__,
        table(results["rows"]),
    ]


def table(rows):
    """Seconds to the end of the first training step, the least of each row's repeats"""
    figures = {
        (row["mode"], row["depth"], row["name"]): (min(row["times"]), row["nodes"])
        for row in rows
    }
    cells = []
    for (mode, depth, name), pair in figures.items():
        exact = figures.get((mode, depth, EXACT), (None, None))
        times, sizes = (tables.number(tables.ratio(*both)) for both in zip(pair, exact))
        what = f"PerformerLM, {depth} layers" if depth else "one layer"
        cells.append([what, name, mode, f"{pair[0]:.1f}", times, f"{pair[1]:,}", sizes])
    header = ["", "attention", "mode", "seconds", "/ exact", "nodes", "/ exact"]
    return tables.table(header, cells)


if __name__ == "__main__":
    main()
