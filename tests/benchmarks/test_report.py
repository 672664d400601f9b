"""Tables of made-up measurements, against numbers computed by hand."""

import json
import pathlib
import re

import pytest

from benchmarks import decoding, report, results, tables, targets


def row(contender, seconds, form="bidirectional", length=4096, **other):
    """A row whose median is `seconds` and whose mean is not."""
    case = {"mode": "xla", "step": "training", "part": "layer", "dtype": "float32"}
    times = [] if seconds is None else [9 * seconds, seconds, 0.9 * seconds]
    case |= {"contender": contender, "form": form, "length": length, "times": times}
    case |= {"environment": "keras", "reason": None}
    return {**case, "trace_seconds": 0.25, "first_call_seconds": 1.5, **other}


ALONE = {"part": "attention", "step": "forward"}
COMPILED = "ours, softmax, jit_compile=True"
# 4096 tokens of 8 heads, 3 products of 256 x 64, 2 operations each: 3.2 GFLOP.
OPERATIONS = 4096 * 8 * 3 * 2 * 256 * 64
ROWS = [
    row("matmul", 0.1, mode="graph"),
    row("softmax", 0.2),
    row("softmax", 0.3, mode="graph"),
    row("softmax", 0.1, dtype="bfloat16"),
    row("returns V", 0.08),
    row("returns V", 0.02, dtype="bfloat16"),
    row("softmax", 0.35, form="causal"),
    row("KernelAttention exp", 0.4),
    row("KernelAttention exp", 0.45, mode="graph"),
    row("performer-pytorch", 0.3, mode="graph"),
    row("exact", None, reason="needs 26 GB, 9 GB are free"),
    row("matmul", 0.1, mode="graph", **ALONE),
    row("softmax", OPERATIONS / (2 * 2048**3 / 0.1) / 0.65, **ALONE),
    row(
        "softmax, jit_compile=True",
        OPERATIONS / (2 * 2048**3 / 0.1) / 0.45,
        mode="graph",
        **ALONE,
    ),
    # shorter: faster at 512 and 2048 but not at 1024
    *(row("exact", 0.1, length=length) for length in (256, 512, 1024, 2048)),
    row("softmax", 0.2, length=256),
    row("softmax", 0.09, length=512),
    row("softmax", 0.11, length=1024),
    row("softmax", 0.05, length=2048),
]


def memory(contender, mebibytes, length):
    return row(contender, None, length=length, peak_bytes=mebibytes * 2**20)


MEMORY = [
    memory("softmax", 100, 4096),
    memory("softmax", 300, 16384),
    memory("softmax", 1050, 65536),
    memory("KernelAttention exp", 1000, 16384),
]
MEASURED = {
    "machine": {
        "cpu": "Abacus (2)",
        "threads": 2,
        "date": "2026-11-22T07:33:13+00:00",
    },
    "versions": {"keras": {"keras": "3.15"}},
    "missing": {"torch": "torch: No matching distribution"},
    "rows": ROWS,
    "memory": MEMORY,
}


@pytest.fixture
def measured():
    return results.Results(MEASURED)


def lines(text):
    """Rows of a Markdown table, without its two lines of header."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()[2:]
    ]


def test_ratios_and_verdicts_of_the_targets(measured):
    found = {tuple(row[:2]): row[2:5] for row in lines(tables.targets(measured))}
    longest = {row[8] for row in lines(tables.targets(measured))}
    kernel = "bidirectional, ours / KernelAttention exp"
    pytorch = "bidirectional, ours / performer-pytorch"
    assert found[kernel, "xla"] == ["0.50", "<= 0.55", "reached"]
    assert found[kernel, "graph"] == ["0.67", "<= 0.6", "missed"]
    assert found[pytorch, "xla"] == ["0.67", "<= 0.6", "missed"]
    assert found[pytorch, "graph"] == ["1.00", "<= 0.8", "missed"]
    causal = "ours, causal / bidirectional"
    assert found[causal, "xla"] == ["1.75", "<= 1.5", "missed"]
    exact = "bidirectional, ours / Keras MultiHeadAttention"
    assert found[exact, "xla"] == ["–", "<= 0.2", "needs 26 GB, 9 GB are free"]
    share = "bidirectional, share of the floor, attention alone, forward"
    assert found[share, "xla"] == ["0.65", ">= 0.6", "reached"]
    assert found[share, "graph"] == ["–", ">= 0.5", "not measured"]
    compiled = found[f"{share}, jit_compile=True", "graph"]
    assert compiled == ["0.45", ">= 0.5", "missed"]
    assert longest == {"not measured"}
    assert len(found) == len(targets.TARGETS) == 20


def test_what_operations_alone_would_give(measured):
    def column(measured):
        return {tuple(row[:2]): row[5] for row in lines(tables.targets(measured))}

    assert set(column(measured).values()) == {"–"}
    forms = "bidirectional, training", "bidirectional, forward", "causal, training"
    shares = [{"graph": 0.3, "XLA": 0.2, "faster": share} for share in (0.5, 0.4, 0.3)]
    found = column(results.Results(MEASURED, dict(zip(forms, shares))))
    # 9 products of 4096 tokens, 8 heads, 256 x 64, at half the rate of the large one
    attention = 9 * 2 * 4096 * 8 * 256 * 64 / (2 * 2048**3 / 0.1) / 0.5
    kernel = "bidirectional, ours / KernelAttention exp"
    pytorch = "bidirectional, ours / performer-pytorch"
    assert found[kernel, "xla"] == f"{(0.08 + attention) / 0.4:.2f}" == "0.48"
    assert found[pytorch, "xla"] == f"{(0.08 + attention) / 0.3:.2f}" == "0.64"
    assert found[kernel, "graph"] == "–"  # the dense layers were not measured there
    assert found["ours, causal / bidirectional", "xla"] == "–"  # no peer
    share = "bidirectional, share of the floor, attention alone, {}"
    assert found[share.format("forward"), "xla"] == "0.40"
    assert found[share.format("training"), "xla"] == "0.50"


def test_times(measured):
    header = tables.times(measured).splitlines()[0]
    assert header.endswith("| 256 | 512 | 1024 | 2048 | 4096 |")
    rows = {tuple(row[:5]): row[5:] for row in lines(tables.times(measured))}
    ours = rows["layer", "bidirectional", "training", "ours, softmax", "xla"]
    assert ours == ["200.0", "90.0", "110.0", "50.0", "200.0"]
    causal = rows["layer", "causal", "training", "ours, softmax", "xla"]
    assert causal == ["–", "–", "–", "–", "350.0"]


def test_shares_of_the_floor(measured):
    rows = {tuple(row[:5]): row[5:] for row in lines(tables.shares(measured))}
    alone = rows["attention", "bidirectional", "forward", "ours, softmax", "xla"]
    assert alone == [*4 * ["–"], "0.65"]
    # 9 products of 256 x 64 for each head and token, and the projections 3 times,
    # at 172 GFLOP/s: (4096 * 8 * 9 * 2 * 256 * 64 + 4096 * 3 * 4 * 2 * 512^2) / 1.72e11
    # = 0.2063 s, of 0.2 s
    layer = rows["layer", "bidirectional", "training", "ours, softmax", "xla"]
    assert layer == [*4 * ["–"], "1.03"]
    compiled = rows["attention", "bidirectional", "forward", COMPILED, "graph"]
    assert compiled == [*4 * ["–"], "0.45"]
    assert {row[3] for row in rows} == {"ours, softmax", COMPILED}


def test_memory(measured):
    assert lines(tables.memory(measured)) == [
        ["bidirectional", "ours, softmax", "xla"]
        + ["100", "300", "1050", "0.30", "3.50"],
        ["bidirectional", "KernelAttention exp", "xla"]
        + ["–", "1000", "–", "1.00", "–"],
    ]


def test_the_crossover_is_where_it_stays_faster(measured):
    graph, xla = lines(tables.crossover(measured))[:2]
    assert xla == ["bidirectional", "xla", "2.00", "0.90", "1.10", "0.50", "2048"]
    assert graph == ["bidirectional", "graph", *5 * ["–"]]
    assert tables.faster_from({256: 1.0, 512: 0.9, 1024: 0.4}) == 512


def test_bfloat16(measured):
    xla = lines(tables.bfloat16(measured))[8:12]
    assert xla == [
        ["bidirectional", "xla", "training", "ours, softmax", "0.50", "–"],
        ["bidirectional", "xla", "training", "ours, relu", "–", "–"],
        ["bidirectional", "xla", "training", "ours, favor+", "–", "–"],
        ["bidirectional", "xla", "training", "X(OPT), returns V", "0.25", "–"],
    ]


def test_product_rates(measured):
    # 17.2 GFLOP in 0.9, 0.1 and 0.09 s
    layer, attention = lines(tables.product_rates(measured))
    rates = ["19", "172", "191"]
    assert layer == ["4096", "bidirectional", "training", "layer", *rates]
    assert attention == ["4096", "bidirectional", "forward", "attention", *rates]


def test_compile_times(measured):
    ours = lines(tables.compiling(measured))[0]
    assert ours == ["bidirectional", "ours, softmax", "xla", *5 * ["0.2 + 1.5"]]


def test_decoding():
    def case(contender, position, seconds, reason=None, **sizes):
        times = [] if seconds is None else [seconds] * 3
        case = {"contender": contender, "position": position, "mode": "xla", **sizes}
        return {**case, "times": times, "reason": reason}

    rows = [  # of 256 tokens
        case("softmax", 100, 0.128),
        case("key-value cache", 100, 0.064),
        case("softmax", 12_000, 0.1344),
        case("key-value cache", 12_000, 1.344),
        case("softmax", 20_000, None, "out of memory"),
        # of as many as their rows say
        case("softmax", 100, 0.064, batch=8, tokens=64),
        case("softmax", 12_000, 0.128, batch=8, tokens=64),
        case("key-value cache", 12_000, 0.384, batch=8, tokens=64),
    ]
    table = lines(decoding.table({"rows": rows}))
    first, _, last, cache, failed, _, many, many_cached = table
    ours = ["ours, softmax", "xla"]
    assert first == [*ours, "1", "100", "2000", "0.500", "1.00", "0.5"]
    assert last[2:] == ["1", "12000", "1905", "0.525", "1.05", "10.0"]
    assert cache[5:] == ["5.250", "21.00", "1.0"]
    assert failed[4] == "out of memory"
    assert many == [*ours, "8", "12000", "4000", "2.000", "2.00", "3.0"]
    assert many_cached[4:] == ["1333", "6.000", "–", "1.0"]


def test_the_decoding_benchmark_compares_positions_and_contenders_in_turns():
    few, *many = decoding.groups([8, 64])
    assert {case["position"] for case in few} == set(decoding.POSITIONS)
    assert [{case["position"] for case in group} for group in many] == [
        {position} for position in decoding.POSITIONS
    ]
    for group in (few, *many):
        assert {case["contender"] for case in group} == set(decoding.CONTENDERS)


def test_overview(measured):
    rows = {row[0]: row[1:] for row in lines(tables.overview(measured))}
    # in a graph: bidirectional / causal, of which there is none
    assert rows["4,096"] == ["300 / –", "–", "–", "450 / –", "300 / –"]
    assert rows["256"] == ["–"] * 5
    why = {"reason": "needs 26 GB, 9 GB are free"}
    assert tables.milliseconds(row("exact", None, **why)) == "needs 26 GB"
    why = {"reason": "a run would take 194 s (12.1 s at length 16384)"}
    assert tables.milliseconds(row("exact", None, **why)) == "not run"


def test_the_whole_report_and_its_pictures(tmp_path, monkeypatch, capsys):
    output = tmp_path / "results"
    (tmp_path / "results.json").write_text(json.dumps(MEASURED))
    operations = {
        "machine": {"threads": 2},
        "shares": {"bidirectional, training": {"faster": 0.5}},
        "table": "| made | up |",
    }
    (tmp_path / "operations.json").write_text(json.dumps(operations))

    def reported(*options):
        options = ["--input", str(tmp_path), "--output", str(output), *options]
        monkeypatch.setattr("sys.argv", ["report", *options])
        report.main()
        return capsys.readouterr().out

    assert reported().startswith(str(output / "2026-11-22-abacus-2.md") + "\n\n| tok")
    text = (output / "2026-11-22-abacus-2.md").read_text()
    assert text.startswith("# 2026-11-22, Abacus (2)\n\n- cpu: Abacus (2)\n")
    assert "- missing: torch: No matching distribution" in text
    assert "- environment keras: keras 3.15" in text
    assert "| 0.50 | <= 0.55 | reached | 0.48 |" in text
    assert "## Operations by themselves, threads: 2\n\n| made | up |" in text
    # what was not measured is in its table
    left_out = text[text.index("Not measured, and why") :]
    assert "exact | xla" in left_out and "needs 26 GB, 9 GB are free" in left_out
    for name in ("time.png", "memory.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    # what is there is never written over
    with pytest.raises(SystemExit):
        reported()
    # another number of threads is another measurement
    operations["machine"]["threads"] = 4
    (tmp_path / "operations.json").write_text(json.dumps(operations))
    printed = reported("--machine", "Another")
    assert "operations.json of 4 threads, the rest has 2" in printed
    text = (output / "2026-11-22-another.md").read_text()
    assert "| 0.50 | <= 0.55 | reached | – |" in text


def test_the_page_shows_the_table_of_a_kept_result():
    folder = pathlib.Path(report.__file__).parent
    page = (folder / "README.md").read_text()
    (name,) = set(re.findall(r"\(results/([^)#/]*\.md)", page))
    kept = (folder / "results" / name).read_text()
    title = tables.overview.__doc__
    table = kept[kept.index(f"## {title}") :].split("\n\n")[1]
    assert table.count("\n") == 1 + 7 and table in page
    for picture in re.findall(r"!\[.*\]\((.*)\)", page):
        assert (folder / picture).exists()
