"""Figures 15 and 16: training with redrawn features, and with generalized kernels.

The task is the associative recall of `benchmarks.learning`, small enough for minutes.
Correct attention answers all questions; a model without attention answers 1 of 64.
"""

from benchmarks import runner
from benchmarks.learning import models, study, tasks, training
from keras_performer.feature_maps.generalized import NAMES as KERNELS

CONTROLS = (models.WITHOUT, models.EXACT)
REDRAWN = ("softmax", "favor+")
REDRAW_ROWS = tuple(
    name
    for feature_map in REDRAWN
    for name in (feature_map, f"{feature_map}, {models.REDRAW}")
)
ROWS = (*CONTROLS, *REDRAW_ROWS, *KERNELS)
QUICK_ROWS = (models.EXACT, "favor+", f"favor+, {models.REDRAW}", "relu")
# So few steps that XLA does not compile, which would take longer than the training.
TASK = tasks.recall(48, 8, window=4, steps=190, batch_size=16, learning_rate=4e-3)
QUICK_STEPS = 120
KEY_DIM = 16
SEEDS, QUICK_SEEDS = (0, 1), (0,)
EVALUATIONS = 10
KEPT = ("task", "measure", "row", "key_dim", "seed", "learning_rate", "steps")


def plan(quick=False):
    """Returns arguments for `benchmarks.learning.training.train`, figure 15 first."""
    seeds = QUICK_SEEDS if quick else SEEDS
    figures = [QUICK_ROWS] if quick else [(*CONTROLS, *REDRAW_ROWS), KERNELS]
    more = dict(key_dim=KEY_DIM, steps=QUICK_STEPS if quick else TASK.steps)
    return [
        study.run_of(TASK, row, seed, TASK.learning_rate, EVALUATIONS, **more)
        for figure in figures
        for seed in seeds
        for row in figure
    ]


def runs(quick=False, workers=2):
    """Trains models; returns dicts with a curve of (steps, accuracy), seed by seed."""
    found = runner.results(training.train, plan(quick), workers)
    found = sorted(found, key=lambda run: (run["seed"], ROWS.index(run["row"])))
    return map(without_times, found)


def without_times(result):
    """Returns the results without times, which are equal in every run of the command.

    The curve of a run that reached the accuracy `Task.enough` ends before its steps.
    """
    kept = {name: result[name] for name in KEPT}
    curve = [[steps, value] for steps, _, _, value in result["curve"]]
    return {**kept, "result": result["result"], "curve": curve}
