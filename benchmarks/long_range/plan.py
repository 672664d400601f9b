"""Which runs there are: tasks, rows, seeds, learning rates, warm-up or none."""

import typing

from benchmarks.learning.plan import is_asked
from benchmarks.long_range import rows, tasks

SEEDS = 0, 1, 2
EVALUATIONS = 6
# Of the learning rate of a task: what `--full` tries beside it with the first seed.
OTHER_RATES = 1 / 3, 3
# Where one of these was best for the first seed, all seeds have it, too.
BETTER_RATES = (
    ("recall 512", 1 / 3, (rows.WINDOW,)),
    ("recall 512", 3, ("Linear Transformer",)),
    ("digits 144", 3, (rows.WITHOUT,)),
    (
        "digits 144",
        1 / 3,
        (rows.WINDOW, rows.GAINS, "Big Bird", "Linformer", "Sinkhorn"),
    ),
    ("bytes 512", 1 / 3, ("Linear Transformer",)),
    ("bytes 512", 3, (rows.PERFORMER, rows.GAINS, rows.TAYLOR, "Synthesizer")),
)
WARM_UPS, ALONE = ("without", "with"), ("without",)
# Of `--quick`: what part of the steps, and which rows.
QUICK_PART, QUICK_EVALUATIONS = 20, 2
QUICK_ROWS = (
    *rows.NO_MODELS,
    rows.WITHOUT,
    rows.EXACT,
    rows.WINDOW,
    rows.PERFORMER,
)


def core():
    """Three tasks that two cores train within two hours."""
    return [
        tasks.questions(512, 32, steps=900, batch_size=8, learning_rate=3e-3),
        tasks.digits(
            12,
            1,
            steps=900,
            warm_up_steps=150,
            batch_size=32,
            hidden_dim=64,
            learning_rate=4e-3,
        ),
        tasks.sources(512, steps=600, batch_size=8, learning_rate=6e-3),
    ]


def further():
    """What the core leaves out: two cores do not learn from it what is far away."""
    small = dict(hidden_dim=64, learning_rate=2e-3)
    warmed = dict(warm_up_steps=150, **small)
    return [
        tasks.list_operations(512, steps=300, batch_size=16, **warmed),
        tasks.packages(512, steps=500, batch_size=16, **warmed),
        tasks.one_file(1024, steps=400, batch_size=8, **warmed),
        tasks.digits(16, 1, steps=1000, batch_size=32, **warmed),
        tasks.paths(16, steps=1000, batch_size=8, **warmed),
        tasks.residues(1024, steps=500, batch_size=8, **small),
    ]


def published():
    """The lengths, batches and steps of arXiv 2011.04006; none was run here.

    The steps are those of the configurations in its repository, which say other things
    than the paper in places. The models have one size, the warm-up and proteins are not
    of it.
    """
    large = dict(
        hidden_dim=128,
        key_dim=32,
        num_layers=4,
        learning_rate=1e-3,
        batch_size=32,
        steps=5000,
        warm_up_steps=5000,
    )
    return [
        tasks.list_operations(2000, **large),
        tasks.packages(4000, **{**large, "steps": 20_000}),
        tasks.one_file(4000, **large),
        tasks.digits(32, 3, **{**large, "steps": 35_000, "batch_size": 256}),
        tasks.paths(32, **{**large, "steps": 62_400, "batch_size": 512}),
        tasks.residues(8192, **{**large, "warm_up_steps": 0}),
    ]


def all_small():
    return [*core(), *further()]


def task_names():
    return [task.name for task in all_small()]


class Part(typing.NamedTuple):
    """Runs of tasks: each with all rows, seeds, kinds of a warm-up and rates.

    Attributes:
        tasks: list of `tasks.LongTask`.
        rows: names of `rows.ROWS`.
        seeds: ints.
        warm_ups: "without", "with" or both.
        factors: of the learning rate of a task.
    """

    tasks: list
    rows: tuple
    seeds: tuple = SEEDS
    warm_ups: tuple = WARM_UPS
    factors: tuple = (1,)


def parts(options):
    """What is asked for: with `--full` everything, but not each with each.

    In the core all rows have three seeds, and with the first three rates and a warm-up,
    which `rows.SEVERAL` have with all.
    """
    first = SEEDS[:1]
    if options.published:
        yield Part(published(), rows.ROWS)
        yield Part(published(), rows.ROWS, first, factors=OTHER_RATES)
    elif options.full:
        yield Part(core(), rows.SEVERAL)
        yield Part(core(), rows.ROWS, SEEDS, ALONE)
        yield Part(core(), rows.ROWS, first)
        yield Part(core(), rows.ROWS, first, ALONE, OTHER_RATES)
        for name, factor, better in BETTER_RATES:
            named = [task for task in core() if task.name == name]
            yield Part(named, better, SEEDS, ALONE, (factor,))
        yield Part(further(), (*rows.CORE, rows.TWO_FEATURES), first)
        yield Part(further()[:1], ("Performer",), first, ALONE)  # beside two features
    else:
        tasks = all_small() if options.tasks else core()
        chosen = options.rows or (QUICK_ROWS if options.quick else rows.CORE)
        for seed in options.seeds or (first if options.quick else SEEDS):
            # in the core, which is to end, a warm-up with the first seed alone
            whole = options.warm_up or options.tasks or seed == SEEDS[0]
            yield Part(tasks, chosen, (seed,), WARM_UPS if whole else ALONE)


def plan(options):
    """Arguments of `training.train`, one run after another.

    The first seeds of all tasks come first, so that whoever stops early has a table.

    Args:
        options: has `quick`, `full`, `published`, and `tasks`, `rows`, `seeds` and
            `warm_up`, each a list of what was asked for, or `None`.
    """
    runs = [
        arguments(task, row, seed, warm_up, factor, options)
        for part in parts(options)
        for seed in part.seeds
        if is_asked(seed, options.seeds)
        for warm_up in part.warm_ups
        if is_asked(warm_up, options.warm_up)
        for task in part.tasks
        if is_asked(task.name, options.tasks)
        for row in part.rows
        if is_asked(row, options.rows) and is_run(task, row, warm_up)
        for factor in part.factors
    ]
    runs = {name_of(run): run for run in runs}.values()
    return sorted(runs, key=lambda run: run["seed"])


def is_run(task, row, warm_up):
    if warm_up == "with" and (row in rows.NO_MODELS or not task.warm_up_steps):
        return False
    if row == rows.FIRST and task.pairs:
        return False
    if row == rows.TWO_FEATURES and not task.name.startswith("ListOps"):
        return False
    if row == rows.COUNTS and not task.num_classes and task.measure == "accuracy":
        return False  # what follows a token says nothing there
    return bool(task.num_classes) or row not in rows.NOT_CAUSAL


def arguments(task, row, seed, warm_up, factor, options):
    run = {"task": task, "row": row, "seed": seed, "warm_up_steps": 0}
    if row in rows.NO_MODELS:
        return {**run, "learning_rate": None, "steps": 0, "evaluations": 1}
    part = QUICK_PART if options.quick else 1
    return {
        **run,
        "learning_rate": factor * task.learning_rate,
        "steps": task.steps // part,
        "warm_up_steps": task.warm_up_steps // part if warm_up == "with" else 0,
        "evaluations": QUICK_EVALUATIONS if options.quick else EVALUATIONS,
    }


def name_of(run):
    """What tells runs apart, in a plan and in `runs.jsonl`."""
    task = run["task"]
    task = task if isinstance(task, str) else task.name
    names = "row", "seed", "learning_rate", "steps", "warm_up_steps"
    return (task, *(run[name] for name in names))


def needs_proteins(runs):
    return any(run["task"].name.startswith("proteins") for run in runs)
