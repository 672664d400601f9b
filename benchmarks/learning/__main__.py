"""Trains small models with different attentions on tasks in which attention matters.

    python -m benchmarks.learning              # the core
    python -m benchmarks.learning --quick      # minutes: a look, too short to conclude
    python -m benchmarks.learning --full       # hours; goes on where it was stopped

Every task has its controls: no attention, exact attention, the exact window alone. Each
run appends a line to `runs.jsonl` in `--output`, and is not made again as long as it
stands there; `--tasks`, `--rows` and `--seeds` choose some. It then writes `tables.md`
and `curves.png`.
"""

import argparse
import json
import pathlib

import keras

from benchmarks import machine
from benchmarks.learning import report, rows, tasks, training

SEEDS = 0, 1, 2
KEY_DIM = 16
RECALL = dict(learning_rate=3e-3)


def core():
    """Tasks with their seeds; a fold of the digits is its seed."""
    yield tasks.recall(128, 16, window=16, steps=250, batch_size=32, **RECALL), SEEDS
    yield tasks.recall(512, 32, window=64, steps=600, batch_size=8, **RECALL), SEEDS
    options = dict(steps=1200, batch_size=8, learning_rate=1.5e-3)
    yield tasks.sources(512, window=64, **options), SEEDS
    for fold in range(5):
        options = dict(steps=400, batch_size=32, learning_rate=1e-3)
        yield tasks.digits(fold, window=4, **options), (fold,)


def full():
    """What the core leaves out."""
    yield tasks.recall(2048, 64, window=128, steps=600, batch_size=4, **RECALL), SEEDS
    options = dict(steps=1200, batch_size=2, learning_rate=1.5e-3)
    yield tasks.sources(2048, window=128, **options), SEEDS
    options = dict(steps=600, batch_size=8, learning_rate=2e-3)
    yield tasks.needle(1024, window=128, **options), SEEDS


def plan(options):
    """Arguments of `training.train`, one run after another."""
    chosen = [*core(), *(full() if options.full else ())]
    names = rows.ROWS + (rows.FURTHER if options.full else ())
    sizes = (16, 32, 64) if options.full else (KEY_DIM,)
    for key_dim in sizes:
        for task, seeds in chosen:
            for row in names:
                for seed in seeds[:1] if options.quick else seeds:
                    rates = (1 / 3, 1, 3) if options.full and seed == 0 else (1,)
                    for factor in rates:
                        yield {
                            "task": task,
                            "row": row,
                            "key_dim": key_dim,
                            "seed": seed,
                            "learning_rate": factor * task.learning_rate,
                            "steps": task.steps // 10 if options.quick else task.steps,
                        }


def name_of(run):
    """What tells runs apart, in a plan and in `runs.jsonl`."""
    task = run["task"]
    task = task if isinstance(task, str) else task.name
    names = "row", "key_dim", "seed", "learning_rate", "steps"
    return (task, *(run[name] for name in names))


def main(argv=None):
    """Reads the command line, trains what is missing and writes the report."""
    options = parsed(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "runs.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    made = [json.loads(line) for line in lines]
    done = {name_of(run) for run in made}
    wanted = [run for run in plan(options) if is_chosen(run, options)]
    for index, run in enumerate(wanted):
        if name_of(run) in done:
            continue
        result = training.train(**run)
        keras.utils.clear_session()
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        made.append(result)
        task, row, *_ = name_of(run)
        print(
            f"{index + 1}/{len(wanted)} {task}, {row}, key_dim {run['key_dim']}, seed "
            f"{run['seed']}: {result['result']:.3f} in {result['seconds']:.0f} s",
            flush=True,
        )
    names = {name_of(run) for run in wanted}
    text = report.write([r for r in made if name_of(r) in names], options.output)
    print(f"{text}\n{machine.describe(threads=None)}")


def is_chosen(run, options):
    return (
        (not options.tasks or run["task"].name in options.tasks)
        and (not options.rows or run["row"] in options.rows)
        and (not options.seeds or run["seed"] in options.seeds)
    )


def parsed(argv):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__.splitlines()[0]
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a tenth of the steps")
    length.add_argument("--full", action="store_true", help="every size and row")
    parser.add_argument("--tasks", nargs="+", help='such as "recall 512"')
    parser.add_argument("--rows", nargs="+", help='such as "window + softmax"')
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/learning")
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
