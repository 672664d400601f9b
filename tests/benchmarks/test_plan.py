"""What is planned, what is left out, and the floor beside it."""

import collections
import json

from benchmarks import floor, plan, workers


def test_the_plan_is_complete_and_ordered():
    groups = list(plan.groups(plan.LENGTHS))
    heads = [
        [(c["length"], c["form"], c["step"], c["part"]) for c in g] for g in groups
    ]
    assert all(len(set(head)) == 1 for head in heads)  # a group shares them
    assert all(group[0]["contender"] == "matmul" for group in groups)
    lengths = [head[0][0] for head in heads]
    assert lengths == sorted(lengths) and set(lengths) == set(plan.LENGTHS)
    kinds = collections.Counter(head[0][2:] for head in heads)
    assert kinds == {
        ("training", "layer"): 2 * 7,
        ("forward", "layer"): 2 * 4,
        ("training", "attention"): 2 * 2,
        ("forward", "attention"): 2 * 2,
    }
    cases = [json.dumps(case) for group in groups for case in group]
    assert len(set(cases)) == len(cases)
    short = {(c["contender"], c["mode"]) for c in groups[0]}
    assert len(short) == 12 == len(groups[0])
    long = next(g for g in groups if g[0]["length"] == 4096)
    new = {(c["contender"], c["mode"], c["dtype"]) for c in long[12:]}
    assert new == {
        (contender, mode, dtype)
        for mode in ("graph", "xla")
        for contender, dtype in [
            ("relu", "float32"),
            ("favor+", "float32"),
            ("KernelAttention relu", "float32"),
            ("softmax", "bfloat16"),
            ("relu", "bfloat16"),
            ("favor+", "bfloat16"),
            ("returns V", "bfloat16"),
        ]
    }
    environments = {case["environment"] for group in groups for case in group}
    assert environments <= set(workers.ENVIRONMENTS)


def test_few_contenders_are_chosen_from_the_same_groups():
    chosen = ["softmax", "KernelAttention relu"]
    groups = list(plan.groups([512, 4096], chosen))
    expected = [
        [case for case in group if case["contender"] in ("matmul", *chosen)]
        for group in plan.groups([512, 4096])
    ]
    assert groups == expected
    assert len(groups) == 2 * (2 + 2 + 2)
    # at 512 tokens KernelAttention relu is not measured: no group of the product alone
    assert len(list(plan.groups([512, 4096], chosen[1:]))) == 2 * 2


def test_memory_is_planned_for_three_lengths():
    cases = plan.memory_cases(plan.LENGTHS)
    assert [case["length"] for case in cases[::22]] == [4096, 16384, 65536]
    assert len(cases) == 3 * 2 * 11
    assert plan.memory_cases([256, 4096]) == cases[:22]


def test_what_is_too_large_or_too_slow_is_left_out():
    exact, ours = plan.cases(
        [("exact", "keras", ["xla"]), ("softmax", "keras", ["xla"])],
        "layer",
        length=16384,
        form="causal",
        step="training",
    )
    # 3 arrays of 8 heads, 16384^2 float32 numbers: 3 * 8 * 16384^2 * 4 bytes
    assert plan.too_large(exact, 25_769_803_775).startswith("needs 26 GB")
    assert plan.too_large(exact, 25_769_803_776) is None
    assert plan.too_large(ours, 0) is None
    # as many bytes, for there are 16384 sums in a state of 256 x 64
    pytorch = {**exact, "contender": "performer-pytorch"}
    assert plan.too_large(pytorch, 25_769_803_775).startswith("needs 26 GB")
    assert plan.too_large({**pytorch, "form": "bidirectional"}, 0) is None
    assert plan.too_large({**pytorch, "step": "forward"}, 0) is None
    assert plan.too_large({**pytorch, "length": 4096}, 6_442_450_944) is None
    before = [
        {**case, "length": 4096, "times": [5.0, 4.0], "reason": None}
        for case in (exact, ours)
    ]
    assert plan.too_slow(exact, before, limit=63).startswith("a run would take 64 s")
    assert plan.too_slow(exact, before, limit=64) is None
    assert plan.too_slow(ours, before, limit=15).startswith("a run would take 16 s")
    assert plan.too_slow(ours, before, limit=16) is None
    assert plan.too_slow({**ours, "mode": "graph"}, before, limit=0) is None


def test_operations_of_attention():
    case = {"contender": "softmax", "form": "bidirectional", "step": "forward"}
    case |= {"length": 2, "part": "attention"}
    # 16 tokens of heads; 3 products of 256 x 64, 2 operations each
    assert floor.operations(case) == 16 * 2 * 3 * 256 * 64
    assert floor.operations({**case, "contender": "relu"}) == 16 * 2 * 4 * 256 * 64
    assert floor.operations({**case, "step": "training"}) == 16 * 2 * 9 * 256 * 64
    causal = {**case, "form": "causal"}
    chunk = 2 * 64 * (256 + 64)
    assert floor.operations(causal) == 16 * (2 * 3 * 256 * 64 + chunk)
    chunks = chunk + 2 * 64 * (3 * 256 + 2 * 64)
    training = {**causal, "step": "training"}
    assert floor.operations(training) == 16 * (2 * 10 * 256 * 64 + chunks)
    layer = floor.operations({**training, "part": "layer"})
    assert layer - floor.operations(training) == 3 * 2 * 4 * 2 * 512 * 512
