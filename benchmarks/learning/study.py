"""A study: trains the models that its file lacks, or times them, and writes a page."""

import itertools
import json

from benchmarks import runner
from benchmarks.learning import times, training

SEEDS, KEY_DIM = (0, 1, 2), 16
# Factors of a task's learning rate that `--full` also tries with the first seed.
OTHER_RATES = 1 / 3, 3
OPTIONS = dict(full=False, workers=2, report_only=False)
OPTIONS |= dict(tasks=[str], rows=[str], seeds=[int], steps=int)
# Options that select runs, and the entry of a run that each compares.
SELECTED = {"tasks": "task", "rows": "row", "seeds": "seed"}
# Entries that identify a run.
FIELDS = "task", "row", "key_dim", "seed", "learning_rate", "steps"


def run(options, wanted, write):
    """Trains missing runs, or times their steps, and writes the page.

    Args:
        options: has `OPTIONS` and `output`; with `times` nothing is trained.
        wanted: list of the arguments of runs, which are those of `training.train`.
        write: function of runs and a folder that writes the page.
    """
    is_timed = getattr(options, "times", False)
    if is_timed:
        times.complete(wanted, options.output)
    workers = None if is_timed or options.report_only else options.workers
    path = options.output / "runs.jsonl"
    print(write(complete(wanted, path, workers, options.full), options.output))


def planned(parts, options, evaluations):
    """Returns the selected runs without duplicates, in the order of seeds.

    If the command is stopped early, its table then still has all tasks.

    Args:
        parts: tuples of a task and lists of seeds, rows and factors of the learning
            rate, which are all combined.
        options: as in `run`; `steps` replaces the steps of tasks.
        evaluations: int, how often a run is measured.
    """
    runs = [
        {
            "task": task,
            "row": row,
            "key_dim": KEY_DIM,
            "seed": seed,
            "learning_rate": factor * task.learning_rate,
            "steps": options.steps or task.steps,
            "evaluations": evaluations,
        }
        for task, *lists in parts
        for seed, row, factor in itertools.product(*lists)
    ]
    for option, entry in SELECTED.items():
        chosen = getattr(options, option)
        if chosen is not None:
            runs = [run for run in runs if entry_of(run, entry) in chosen]
    runs = {name_of(run): run for run in runs}.values()
    return sorted(runs, key=lambda run: run["seed"])


def complete(wanted, path, workers, all_there_are=False, function=training.train):
    """Makes the runs that a file lacks, and adds a line of JSON for each.

    A run is a dict of arguments of `function`, which returns another dict with the same
    `FIELDS`. If `workers` is `None`, makes no runs. Returns the results of wanted runs
    in their order, with `all_there_are` all results in the order of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    made = {name_of(run): run for run in map(json.loads, lines)}
    names = [name_of(run) for run in wanted]
    missing = [run for name, run in zip(names, wanted) if name not in made]
    missing = [] if workers is None else missing
    for result in runner.results(function, missing, workers):
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        made[name_of(result)] = result
        print(
            f"{sum(name in made for name in names)}/{len(names)} "
            f"{', '.join(str(x) for x in name_of(result) if x is not None)}: "
            f"{result['result']:.3f} in {result['seconds']:.0f} s",
            flush=True,
        )
    return [made[name] for name in (made if all_there_are else names) if name in made]


def name_of(run):
    """Returns a tuple that identifies a run."""
    return tuple(entry_of(run, field) for field in FIELDS)


def entry_of(run, field):
    """Returns an entry of a run, or `None`; of a task its name."""
    value = run.get(field)
    return getattr(value, "name", value)
