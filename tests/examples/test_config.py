import dataclasses
import re

import pytest

from examples.imagenet64.config import PRESETS, Config, parse


@pytest.fixture
def yaml_file(tmp_path):
    def write(text, name="settings.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_no_flags_give_the_demo():
    assert parse([]) == Config() == Config.from_preset("demo")


def test_the_paper_presets():
    paper, paper12 = Config.from_preset("paper"), Config.from_preset("paper12")
    for config in (paper, paper12):
        sizes = config.num_heads, config.hidden_dim, config.intermediate_dim
        assert sizes == (8, 512, 2048)
        assert config.likelihood == "categorical"
        assert (config.beta_1, config.beta_2, config.epsilon) == (0.9, 0.98, 1e-9)
        assert (config.global_clipnorm, config.weight_decay) == (0.5, 0.1)
    assert (paper.num_layers, paper12.num_layers) == (6, 12)
    different = dataclasses.replace(paper12, num_layers=6, preset="paper")
    assert different == paper
    assert parse(["--preset", "paper12"]) == paper12


def test_flags_win_over_files_over_preset_over_defaults(yaml_file):
    path = yaml_file("preset: paper\nlearning_rate: 2e-4\nseed: 5\nmax_minutes: null\n")
    expected = Config.from_preset("paper", learning_rate=2e-4, seed=7)
    # Also when the flag comes first.
    assert parse(["--config", path, "--seed", "7"]) == expected
    assert parse(["--seed=7", f"--config={path}"]) == expected
    changed = parse(["--config", path, "--preset", "paper12"])
    assert (changed.num_layers, changed.learning_rate) == (12, 2e-4)


@pytest.mark.parametrize("flag", ["--print_config", "--help"])
def test_what_is_printed_is_of_the_preset(flag, yaml_file, capsys):
    with pytest.raises(SystemExit):
        parse(["--preset", "paper", "--learning_rate", "2e-4", flag])
    printed = capsys.readouterr().out
    if flag == "--help":
        assert "default: 100000" in printed
        return
    expected = Config.from_preset("paper", learning_rate=2e-4)
    assert parse(["--config", yaml_file(printed)]) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--learnin_rate", "1"], "learnin_rate"),
        (["--warmup", "3"], "unrecognized arguments: --warmup"),  # no abbreviations
        (["--preset", "huge"], "huge"),
        (["--num_layers", "two"], "num_layers"),
        (
            ["--num_layers", "0"],
            "num_layers must be at least 1. Received: num_layers=0",
        ),
        (["--likelihood", "gaussian"], "gaussian"),
        (["--dtype_policy", "bfloat16"], "mixed_bfloat16"),
        (["--seed", "99999999999999"], "seed must be below 2**31"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--config"], "expected one argument"),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_mistakes_end_with_a_message(argv, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training_rows": 65}, "training_rows must be .* at most 64. Received: "),
        ({"attention": "local", "exact_window": None}, "exact_window must be at le"),
        ({"position_embedding": "learned"}, "training_rows must be 64 with learned"),
        ({"hidden_dim": 30, "num_heads": 4}, "hidden_dim must be a multiple of num_"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"num_last": 2}, "num_last must be at least 3"),
        ({"input_noise": -1.0}, "input_noise must be at least 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"seed": -1}, "seed must be at least 0. Received: seed=-1"),
        ({"seed": 2**31}, r"seed must be below 2\*\*31. Received: seed=2147483648"),
        ({"dtype_policy": "bogus"}, "dtype_policy must be one of float32, mixed_b"),
        ({"dtype_policy": "float16"}, "dtype_policy must be one of float32, mixed_b"),
        (
            {"steps_per_epoch": 3, "steps_per_execution": 2},
            "steps_per_epoch must be a multiple of steps_per_execution=2. Received: "
            "steps_per_epoch=3",
        ),
        ({"every_n_steps": 0}, "every_n_steps must be at least 1"),
        ({"preset": "huge"}, "preset must be one of demo, pictures, paper"),
    ],
)
def test_values_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**changes)


def test_every_preset_changes_known_fields():
    fields = {field.name for field in dataclasses.fields(Config)}
    for preset, changes in PRESETS.items():
        assert set(changes) <= fields
        assert Config.from_preset(preset).preset == preset
    with pytest.raises(ValueError, match="preset must be one of"):
        Config.from_preset("huge")


def test_every_field_is_documented():
    documented = re.findall(r"^        (\w+): ", Config.__doc__, re.MULTILINE)
    assert sorted(documented) == sorted(f.name for f in dataclasses.fields(Config))
