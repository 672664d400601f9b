"""The scripts for a GPU, on a CPU."""

import collections
import json

from benchmarks.gpu import compiled, layers

SIZE = 1, 16


def test_a_case_of_the_file_is_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "SIZES", (SIZE,))
    monkeypatch.setattr(layers, "OF_ROW", {layers.EXACT: (SIZE,)})
    monkeypatch.setattr(layers, "MODES", ("graph",))
    command = ["--output", str(tmp_path), "--rows", layers.EXACT]
    layers.main(command)
    rows = json.loads((tmp_path / "layers.json").read_text())["rows"]
    assert [row["form"] for row in rows] == ["causal", "bidirectional"]
    assert all(min(row["rounds"]) <= row["ms"] <= max(row["rounds"]) for row in rows)
    asked = []
    monkeypatch.setattr(layers, "measured", lambda case: asked.append(case) or {})
    layers.main([*command, "window"])
    assert [case["row"] for case in asked] == ["window", "window"]
    monkeypatch.setattr(layers, "MODES", ("xla",))
    layers.main([*command[:2], "--chunks", "64"])
    layers.main([*command, "features"])
    assert [case.get("chunk") for case in asked[2:]] == [64, *4 * [None]]


PROGRAM = """
%slices (p.0: f32[8,100], p.1: s32[]) -> f32[1,100] {
  %p.0 = f32[8,100]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[1,100]{1,0} dynamic-slice(%p.0, %p.1, %zero), sizes={1,100}
}

%body (state: (s32[], f32[8,100], bf16[1,100])) -> (s32[], f32[8,100], bf16[1,100]) {
  %state = (s32[], f32[8,100]{1,0}, bf16[1,100]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8,100]{1,0} get-tuple-element(%state), index=1
  %row = f32[1,100]{1,0} fusion(%x, %i), kind=kLoop, calls=%slices
  %half = bf16[1,100]{1,0} convert(%row)
  ROOT %next = (s32[], f32[8,100]{1,0}, bf16[1,100]{1,0}) tuple(%i, %x, %half)
}

ENTRY %main (x: f32[8,100]) -> f32[8,100] {
  %x = f32[8,100]{1,0} parameter(0)
  %start = (s32[], f32[8,100]{1,0}, bf16[1,100]{1,0}) tuple(%x)
  %loop = (s32[], f32[8,100]{1,0}, bf16[1,100]{1,0}) while(%start), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"8"}}
  %rare = (s32[], f32[8,100]{1,0}, bf16[1,100]{1,0}) while(%loop), condition=%test, body=%body
  ROOT %y = f32[8,100]{1,0} copy(%x)
}
"""  # noqa: E501


def test_kernels_of_a_program_are_counted_by_hand():
    found = compiled.estimate(PROGRAM)
    assert found["kernels"] == 8 * 2 + 1
    assert found["products"] == 0
    product = "  %z = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}\n"
    assert compiled.estimate(PROGRAM + product)["products"] == 1
    computations, entry = compiled.parsed(PROGRAM)
    counter = collections.Counter()
    compiled.add_kernels(computations, entry, 1, counter)
    # a row of floats and an int are read, a row is written, read and written in halves
    assert counter["bytes"] == 8 * (400 + 4 + 400 + 400 + 200) + 2 * 3200
