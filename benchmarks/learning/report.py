"""One page of tables, and the plots."""

import datetime

from benchmarks.learning import plots, tables, times

ON_ONE_CORE = "each on one core, others beside it"
ON_ALL_CORES = "one after another on all cores"

SWAP = """\
## Exact attention exchanged

What trained models with exact attention lose in held-out bits when other attention
takes its place, with their weights and without training."""


def write(runs, folder):
    """Writes `tables.md` and the plots; returns the text.

    Args:
        runs: dicts as `training.train` returns them, in the order of the plan.
        folder: path; its times are read if they are there.
    """
    runs = times.retold(runs, folder)
    told = times.explanation(folder)
    text = "# Does it learn?\n\nNo runs." if not runs else page(runs, told)
    (folder / "tables.md").write_text(text + "\n")
    if runs:
        plots.draw_curves(runs, folder / "curves.png")
        plots.draw_states(runs, folder / "state.png")
    return text


def page(runs, times_told=None):
    parts = ["# Does it learn?", tables.summary(runs), explanation(runs)]
    parts += filter(None, [times_told])
    for (name, key_dim), same in tables.by(runs, "task", "key_dim"):
        window, steps = same[0]["window"], same[0]["steps"]
        parts.append(
            f"## {name}\n\nkey_dim {key_dim}, window {window}, {steps:,} steps."
        )
        parts.append(tables.task_table(same))
    swapped = tables.swap_table(runs)
    if swapped:
        parts += [SWAP, swapped]
    return "\n\n".join(parts)


def explanation(runs):
    """How the figures came about."""
    places = {run["threads"] for run in runs}
    where = " or ".join(
        ON_ONE_CORE if threads == 1 else ON_ALL_CORES for threads in sorted(places)
    )
    machines, versions, hours = made_by(runs)
    return f"""\
Means over seeds at the best of the learning rates that most had. All rows of a task
have the same parameters (to 1 %: without attention the feed-forward network is wider)
and steps. Bits are of held-out data: less is better. A run of recall or needle ends
when 99.5 % of held-out questions are answered; its last value counts. "Minus exact" is
the mean difference from exact attention of the same seeds or folds, ± its standard
error.

"After S s" is at equal wall time: that in which the fastest row with attention takes
all its steps, between measurements on a line. Who has ended keeps the last value.

{len(runs)} runs on {machines}, {where}, with TensorFlow {versions};
{hours:.1f} hours, summed over runs; written {datetime.date.today()}."""


def made_by(runs):
    """The machines of runs, their versions of TensorFlow, and the hours they took."""
    machines, versions = (
        " and ".join(dict.fromkeys(run[name] for run in runs))
        for name in ("machine", "tensorflow")
    )
    return machines, versions, sum(run["seconds_in_all"] for run in runs) / 3600
