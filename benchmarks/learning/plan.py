"""Which runs there are: tasks, rows, sizes of heads, seeds and learning rates."""

import typing

from benchmarks.learning import real_tasks, rows, tasks

SEEDS = 0, 1, 2
FOLDS = 0, 1, 2, 3, 4
EVALUATIONS = 12
KEY_DIM = 16
KEY_DIMS = 16, 32, 64
# Of the learning rate of a task: what `--full` tries beside it with the first seed.
OTHER_RATES = 1 / 3, 3
# Where `--full` has `rows.FURTHER`, and where larger heads.
OF_FURTHER_ROWS = "recall 512", "bytes 512, rotary"
OF_SIZES = "recall 128", "bytes 512, rotary"
RECALL = dict(learning_rate=3e-3)
# Of tasks with rotary positions, with which models need fewer.
ROTARY_STEPS = 600
# Of `--quick`: what part of the steps, how often it measures, and which features.
QUICK_PART, QUICK_EVALUATIONS = 20, 3
QUICK_LEAVES_OUT = {"softmax", "window + softmax"}
# What the core has no time for, and `--full` has; and what it takes of `rows.FURTHER`.
LEFT_OUT = {
    (task, row)
    for task in ("images 768", "digits")
    for row in ("taylor", "window + taylor")
}
ADDED = {("recall 512", "window + softmax, high gain")}


def core():
    """Tasks with their seeds; a fold of the digits is its seed."""
    yield recall_512(), SEEDS
    options = dict(steps=600, batch_size=4, learning_rate=2e-3)
    yield real_tasks.images(window=64, **options), SEEDS
    for fold in FOLDS:
        options = dict(steps=400, batch_size=32, learning_rate=3e-3)
        yield real_tasks.digits(fold, window=4, **options), (fold,)


def further():
    """What the core leaves out."""
    short = tasks.recall(128, 16, window=16, steps=250, batch_size=32, **RECALL)
    yield short, SEEDS
    yield tasks.recall(2048, 64, window=128, steps=600, batch_size=4, **RECALL), SEEDS
    yield bytes_512(1200), SEEDS
    yield tasks.with_rotary(bytes_512(ROTARY_STEPS)), SEEDS
    options = dict(steps=ROTARY_STEPS, batch_size=2, learning_rate=1.5e-3)
    yield tasks.with_rotary(real_tasks.sources(2048, window=128, **options)), SEEDS
    yield tasks.with_rotary(short), SEEDS
    yield tasks.with_rotary(recall_512()), SEEDS
    options = dict(steps=1200, batch_size=8, learning_rate=2e-3)
    yield tasks.needle(1024, window=128, **options), SEEDS


def recall_512():
    return tasks.recall(512, 32, window=64, steps=600, batch_size=8, **RECALL)


def bytes_512(steps):
    options = dict(steps=steps, batch_size=8, learning_rate=1.5e-3)
    return real_tasks.sources(512, window=64, **options)


def task_names():
    """Every task that can be asked for by name."""
    return list(dict.fromkeys(task.name for task, _ in (*core(), *further())))


class Part(typing.NamedTuple):
    """Runs of one task: all of its seeds with all rows, sizes and rates.

    Attributes:
        task: a `Task`.
        seeds: tuple of ints.
        rows: tuple of names.
        key_dims: tuple of ints.
        factors: tuple of floats, of the learning rate of the task.
    """

    task: tasks.Task
    seeds: tuple
    rows: tuple
    key_dims: tuple = (KEY_DIM,)
    factors: tuple = (1,)


def whole():
    """Every task, row, size and rate, but not each with each.

    The core has all its seeds and three rates of the first, other tasks have the first
    seed. What `rows` calls further, and larger heads, are of tasks that tell of them.
    """
    for task, seeds in core():
        yield Part(task, seeds, core_rows(task))
        yield Part(task, seeds, rows.ROWS)
        yield Part(task, first(seeds), rows.ROWS, factors=OTHER_RATES)
    for task, seeds in further():
        yield Part(task, first(seeds), rows.ROWS)
    for task, seeds in (*core(), *further()):
        if task.name in OF_FURTHER_ROWS:
            yield Part(task, first(seeds), rows.FURTHER)
        if task.name in OF_SIZES:
            yield Part(task, first(seeds), rows.ROWS, KEY_DIMS[1:])


def first(seeds):
    return tuple(seed for seed in seeds if seed == 0)


def chosen(options):
    """Parts of the core, or of the tasks that are named, with the rows of `options`."""
    every = [*core(), *further()] if options.tasks else core()
    for task, seeds in every:
        seeds = first(seeds) if options.quick and not options.seeds else seeds
        sizes = options.key_dims or (KEY_DIM,)
        yield Part(task, seeds, wanted_rows(task, options), tuple(sizes))


def wanted_rows(task, options):
    if options.rows:
        return rows.ROWS + rows.FURTHER
    if options.quick:
        return tuple(row for row in rows.ROWS if row not in QUICK_LEAVES_OUT)
    return core_rows(task)


def core_rows(task):
    return tuple(
        row
        for row in rows.ROWS + rows.FURTHER
        if (row in rows.ROWS and (task.name, row) not in LEFT_OUT)
        or (task.name, row) in ADDED
    )


def plan(options):
    """Arguments of `training.train`, one run after another.

    The first seeds of all tasks come first, so that whoever stops early has a table.

    Args:
        options: has `quick`, `full`, and `tasks`, `rows`, `key_dims` and `seeds`, each
            a list of what was asked for, or `None`.
    """
    runs = [
        {
            "task": part.task,
            "row": row,
            "key_dim": key_dim,
            "seed": seed,
            "learning_rate": factor * part.task.learning_rate,
            "steps": part.task.steps // (QUICK_PART if options.quick else 1),
            "evaluations": QUICK_EVALUATIONS if options.quick else EVALUATIONS,
        }
        for part in (whole() if options.full else chosen(options))
        if is_asked(part.task.name, options.tasks)
        for seed in part.seeds
        if is_asked(seed, options.seeds)
        for key_dim in part.key_dims
        if is_asked(key_dim, options.key_dims)
        for row in part.rows
        if is_asked(row, options.rows)
        for factor in part.factors
    ]
    runs = {name_of(run): run for run in runs}.values()
    return sorted(runs, key=lambda run: (run["key_dim"], run["seed"]))


def cases(runs):
    """What differs in the time of a step: each task, row and size of heads once."""
    names = "task", "row", "key_dim"
    found = {(run["task"].name, run["row"], run["key_dim"]): run for run in runs}
    return [{name: run[name] for name in names} for run in found.values()]


def is_asked(x, some):
    return some is None or x in some


def name_of(run):
    """What tells runs apart, in a plan and in `runs.jsonl`."""
    task = run["task"]
    task = task if isinstance(task, str) else task.name
    names = "row", "key_dim", "seed", "learning_rate", "steps"
    return (task, *(run[name] for name in names))
