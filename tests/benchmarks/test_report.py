"""The report of `make bench`: a made-up measurement, and the page that shows one."""

import json
import pathlib
import re

import pytest

from benchmarks import measure, report


def test_the_report_and_its_pictures(tmp_path, capsys):
    rows = []
    for index, case in enumerate(
        case for group in measure.groups([256, 4096]) for case in group
    ):
        seconds = 0.001 * (1 + index)
        row = {**case, "times": [9, seconds, seconds / 2], "reason": None}
        row |= {"trace_seconds": 0.1, "first_call_seconds": 2.04}
        if case["contender"] == "exact" and case["length"] == 4096:
            row |= {"times": [], "reason": "needs 26 GB, 9 GB are free"}
        rows.append(row)
    memory = [{**rows[1], "peak_bytes": 3 * 2**20}]
    machine = {"date": "2026-11-22T01:02:03", "cpu": "Abacus (2)", "threads": 2}
    results = {"machine": machine, "versions": {"torch": {"torch": "2"}}}
    results |= {"missing": {"trax": "trax: no"}, "rows": rows, "memory": memory}
    (tmp_path / "results.json").write_text(json.dumps(results))
    flags = ["--input", str(tmp_path), "--output", str(tmp_path / "results")]
    report.main(flags)
    path = tmp_path / "results" / "2026-11-22-abacus-2.md"
    assert capsys.readouterr().out.startswith(f"{path}\n\n| tok")
    text = path.read_text()
    assert "- missing: trax: no" in text and "- environment torch: torch 2" in text
    table = report.overview(results).splitlines()
    ours = [
        1e3 * row["times"][1]
        for row in rows
        if row["contender"] == "softmax"
        and (row["mode"], row["step"], row["length"]) == ("graph", "training", 256)
    ]
    assert table[2].startswith(f"| 256 | {ours[0]:.0f} / {ours[1]:.0f} |")
    assert table[3].split(" | ")[2] == "needs 26 GB"
    assert "| bidirectional | training | float32 | ours, softmax | graph | 3 |" in text
    assert "0.1 + 2.0" in text and "exact | xla | float32" in text
    for name in ("time.png", "memory.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):  # what is there is never written over
        report.main(flags)


def test_the_page_shows_the_table_of_a_kept_result():
    folder = pathlib.Path(report.__file__).parent
    page = (folder / "README.md").read_text()
    (name,) = set(re.findall(r"\(results/([^)#/]*\.md)", page))
    kept = (folder / "results" / name).read_text()
    title = report.overview.__doc__
    table = kept[kept.index(f"## {title}") :].split("\n\n")[1]
    assert table.count("\n") == 1 + 7 and table in page
    for picture in re.findall(r"!\[.*\]\((.*)\)", page):
        assert (folder / picture).exists()
