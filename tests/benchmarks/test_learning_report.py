"""The tables say what the runs say."""

import math

import pytest

from benchmarks.learning import __main__ as command
from benchmarks.learning import curves, plots, pool, report, rows, swap, tables, times


def run(row, result, seconds=10.0, **options):
    """A run of 100 steps, measured at 50 and 100."""
    middle = (1.0 + result) / 2
    return {
        "task": "bytes 512",
        "measure": "bits",
        "row": row,
        "key_dim": 16,
        "seed": 0,
        "learning_rate": 1e-3,
        "steps": 100,
        "window": 64,
        "parameters": 1234,
        "state": 4096,
        "result": result,
        "seconds": seconds,
        "seconds_in_all": 1800.0,
        "threads": 1,
        "machine": "a processor at 2,400 MHz, 2 cores",
        "tensorflow": "2.21.0",
        "curve": [[50, seconds / 2, 3.0, middle], [100, seconds, 2.0, result]],
        **options,
    }


def cells_of(text, row):
    """The cells of each line of a row, in any table of a text."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [line[1:] for line in lines if line[0] == row]


def test_values_at_a_time_lie_on_the_line_between_measurements():
    one = run(rows.EXACT, 3.0, seconds=40.0)  # 2.0 after 20 s, 3.0 after 40 s
    assert curves.value_at(one, 25.0) == 2.25
    assert curves.value_at(one, 50.0) == 3.0
    assert math.isnan(curves.value_at(one, 19.0))


def test_a_run_that_ended_early_keeps_its_last_value():
    long = [[50, 5.0, 0.0, 0.25], [100, 10.0, 0.0, 0.5], [150, 15.0, 0.0, 0.75]]
    early = [[50, 10.0, 0.0, 0.5], [100, 20.0, 0.0, 1.0]]
    runs = [run("softmax", 0.75, curve=long), run("softmax", 1.0, curve=early)]
    steps, seconds, values = curves.of_seeds(runs)
    assert steps.tolist() == [50, 100, 150]
    assert seconds == pytest.approx([7.5, 15.0, 22.5])  # steps of .1 and .2 s
    assert values.tolist() == [[0.25, 0.5, 0.75], [0.5, 1.0, 1.0]]


def test_equal_time_is_that_of_the_fastest_row_with_attention():
    runs = [
        run(rows.WITHOUT, 2.0, seconds=4.0),
        run(f"{rows.WITHOUT}, conv", 2.0, seconds=5.0),
        run(rows.EXACT, 3.0, seconds=40.0),
        run("softmax", 2.5, seconds=24.0),
        run("softmax", 2.5, seconds=26.0, seed=1),
    ]
    assert curves.equal_time(runs) == 25.0
    text = tables.task_table(runs)
    assert "after 25 s" in text
    assert cells_of(text, rows.EXACT)[0][5] == "2.250"
    assert cells_of(text, rows.WITHOUT)[0][5] == "2.000"
    # one that had learned enough after half of its steps would have taken 30 s
    stopped = run(rows.WINDOW, 1.0, curve=[[50, 15.0, 0.1, 1.0]], seconds=15.0)
    assert curves.equal_time([*runs, stopped]) == 25.0
    assert curves.equal_time(runs[:1]) is None


def test_what_a_row_is_worth_is_paired_by_seeds():
    exact = [run(rows.EXACT, bits, seed=seed) for seed, bits in enumerate((2.0, 2.5))]
    window = [run(rows.WINDOW, bits, seed=seed) for seed, bits in ((0, 1.9), (1, 2.2))]
    alone = [run("softmax", 2.75, seed=1), run("softmax", 9.0, seed=2)]
    text = tables.task_table([*exact, *window, *alone, run("relu", 3.0, seed=2)])
    # differences of -.1 and -.3: a standard deviation of .1414 over the root of 2
    expected = {rows.EXACT: "–", rows.WINDOW: "-0.200 ± 0.100", "softmax": "+0.250"}
    for row, cell in {**expected, "relu": "–"}.items():
        assert cells_of(text, row)[0][4] == cell


def test_the_summary_has_the_best_learning_rate_and_the_time_of_a_step():
    runs = [
        run("softmax", 2.5, learning_rate=1e-3),
        run("softmax", 2.7, learning_rate=1e-3, seed=1),
        # better, but of one seed
        run("softmax", 2.4, learning_rate=3e-3),
        run("softmax", 2.0, key_dim=64),
    ]
    more = dict(task="digits", measure="accuracy")
    runs += [
        run("softmax", 0.25, learning_rate=1e-3, **more),
        run("softmax", 0.75, learning_rate=3e-3, **more),
        run(rows.EXACT, 0.5, seed=1, **more),
    ]
    text = tables.summary(runs)
    columns = [rows.ROWS.index(row) for row in ("softmax", rows.EXACT)]
    for label, expected in {
        "bytes 512, bits": ["2.600", "–"],
        "digits, accuracy": ["0.750 (n = 1)", "0.500 (n = 1)"],
        "bytes 512": ["100", "–"],
        "digits": ["100", "100"],
    }.items():
        (cells,) = cells_of(text, label)
        assert [cells[column] for column in columns] == expected


def test_the_median_seed_says_when_a_task_was_learned():
    curve = [[50, 1.0, 1.0, 0.2], [100, 2.0, 1.0, 0.95], [150, 3.0, 1.0, 0.8]]
    early, never = (
        run("softmax", 0.8, measure="accuracy", curve=points)
        for points in (curve, curve[:1])
    )
    assert tables.when_learned([early, never, early]) == "100 steps"
    assert tables.when_learned([early, never, never]) == "never"


def test_a_page_says_how_its_figures_came_about(tmp_path):
    runs = [run(rows.EXACT, 2.5), run("softmax", 2.25, seed=1)]
    recall = [run(row, 0.5, task="recall 512") for row in rows.ROWS[:3]]
    recall[0]["state"] = 0
    recall[1]["machine"] = "another"
    text = report.write(runs + recall, tmp_path)
    assert "5 runs on a processor at 2,400 MHz, 2 cores and another, each on" in text
    assert "TensorFlow 2.21.0;\n2.5 hours" in text
    assert text + "\n" == (tmp_path / "tables.md").read_text()
    for name in ("curves.png", "state.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_swaps_are_a_table_of_rows_and_sizes_of_heads(tmp_path):
    lost = dict.fromkeys(swap.SWAPPED, 0.25)
    runs = [
        run(rows.EXACT, 2.5, swap={**lost, "window": 0.01}),
        run(rows.EXACT, 2.5, swap={**lost, "window": 0.03}, seed=1),
        run(rows.EXACT, 2.5, swap=lost, key_dim=64),
        run("softmax", 2.5),
    ]
    text = report.write(runs, tmp_path)
    swaps = text[text.index("| bits lost | bytes 512, key_dim 16 | bytes 512") :]
    assert cells_of(swaps, "window") == [["0.020 (0.010 / 0.030)", "0.250 (0.250)"]]


@pytest.mark.parametrize("runs", [[], [run(rows.WITHOUT, 2.0)]])
def test_a_page_of_little(runs, tmp_path):
    assert report.write(runs, tmp_path).startswith("# Does it learn?")


def test_times_of_one_machine_stand_for_those_of_the_runs(tmp_path, monkeypatch):
    asked = []

    def timed(task, row, key_dim):
        asked.append((task.name, row, key_dim))
        return task.name, times.row_of({"row": row, "key_dim": key_dim}), 0.02

    results = pool.results
    monkeypatch.setattr(times, "timed", timed)
    monkeypatch.setattr(
        pool, "results", lambda time, cases, workers: results(time, cases, 0)
    )
    chosen = ["--tasks", "recall 128", "--rows", "window", "--key-dims", "16", "64"]
    command.main(["--times", *chosen, "--output", str(tmp_path)])
    assert asked == [("recall 128", "window", 16), ("recall 128", "window", 64)]
    runs = [run("window", 3.0, task="recall 128", key_dim=dim) for dim in (16, 32)]
    timed, other = times.retold(runs, tmp_path)
    assert timed["curve"] == [[50, 1.0, 3.0, 2.0], [100, 2.0, 2.0, 3.0]]
    assert other == runs[1]  # not timed
    text = report.write(runs, tmp_path)
    assert {cells[6] for cells in cells_of(text, "window")} >= {"20", "100"}
    assert "medians of 15 steps, on one thread of" in text


def test_of_many_rows_those_of_the_core_are_drawn():
    few = [run(f"row {number}", 3.0) for number in range(plots.MOST_ROWS)]
    assert plots.drawn(few) == few
    core = [run(row, 3.0) for row in rows.ROWS]
    assert plots.drawn([*few, *core]) == core
