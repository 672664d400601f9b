"""What a learning curve says: when, and how good at a given time.

A curve is a list of `(steps, seconds, loss, measured)`, as `training.train` notes it.
"""

import math
import statistics

import numpy as np

from benchmarks.learning import rows


def value_at(run, seconds):
    """What was measured at a time, between two measurements on a line.

    A run that has ended keeps its last value; before the first it is nan.
    """
    curve = np.array(run["curve"])
    return float(np.interp(seconds, curve[:, 1], curve[:, 3], left=math.nan))


def steps_to_reach(run, value):
    """Steps until so much was measured; infinite if it never was."""
    return next((point[0] for point in run["curve"] if point[3] >= value), math.inf)


def seconds_of_step(run):
    steps, seconds, _, _ = run["curve"][-1]
    return seconds / steps


def of_seeds(runs):
    """The curves of runs with different seeds, at the same steps.

    Returns:
        `(steps, seconds, values)`: arrays `(points,)` and, of what was measured,
        `(seeds, points)`. A run that ended early keeps its last value, and seconds go
        on at the median time of a step.
    """
    points = [np.array(run["curve"]) for run in runs]
    steps = np.unique(np.concatenate([curve[:, 0] for curve in points]))
    values = [np.interp(steps, curve[:, 0], curve[:, 3]) for curve in points]
    seconds = steps * statistics.median(map(seconds_of_step, runs))
    return steps, seconds, np.array(values)


def equal_time(runs):
    """Seconds in which the fastest attention among runs takes all its steps.

    Args:
        runs: those of one task and one `key_dim`, of all rows or of some.

    Returns:
        float, the mean over seeds of the fastest row, or `None` without attention.
    """
    times = {}
    for run in runs:
        if not run["row"].startswith(rows.WITHOUT):
            # a run that had learned enough ended earlier: time for all steps counts
            seconds = seconds_of_step(run) * run["steps"]
            times.setdefault(run["row"], []).append(seconds)
    return min(map(statistics.mean, times.values()), default=None)
