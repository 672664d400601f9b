"""Settings: flags, files and presets, and the files in `tpu_configs/`."""

import dataclasses
import pathlib
import re

import pytest
import yaml

from examples.imagenet64.config import PRESETS, Config, parse

FOLDER = pathlib.Path(__file__).parents[2] / "tpu_configs"
# Replicas of each slice. The two cores of a v4 or v5p chip count as one replica; the
# batch is a multiple of twice the number, in case they are two.
REPLICAS = {"v5e-1": 1, "v5e-4": 4, "v5e-8": 8, "v6e-8": 8}
REPLICAS |= {"v4-8": 8, "v5p-8": 8, "v4-32": 32}
OF_ANOTHER_EXAMPLE = {"v5e-16"}  # examples.long_text, see test_long_text.py
FILES = sorted(x for x in FOLDER.glob("*.yaml") if x.stem not in OF_ANOTHER_EXAMPLE)


def test_the_presets():
    assert parse([]) == Config() == Config.from_preset("demo")
    paper, paper12 = Config.from_preset("paper"), Config.from_preset("paper12")
    assert paper12 == dataclasses.replace(paper, num_layers=12, preset="paper12")
    for preset in PRESETS:
        assert parse(["--preset", preset]) == Config.from_preset(preset)
        assert Config.from_preset(preset).preset == preset


def test_flags_win_over_files_over_preset_over_defaults(tmp_path):
    path = str(tmp_path / "settings.yaml")
    text = "preset: paper\nlearning_rate: 2e-4\nseed: 5\nmax_minutes: null\n"
    pathlib.Path(path).write_text(text)
    expected = Config.from_preset("paper", learning_rate=2e-4, seed=7)
    # also when the flag comes first
    assert parse(["--config", path, "--seed", "7"]) == expected
    assert parse(["--seed=7", f"--config={path}"]) == expected
    changed = parse(["--config", path, "--preset", "paper12"])
    assert (changed.num_layers, changed.learning_rate) == (12, 2e-4)


@pytest.mark.parametrize("flag", ["--print_config", "--help"])
def test_what_is_printed_is_of_the_preset(flag, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse(["--preset", "paper", "--learning_rate", "2e-4", flag])
    printed = capsys.readouterr().out
    if flag == "--help":
        assert "default: 100000" in printed
        return
    (tmp_path / "settings.yaml").write_text(printed)
    expected = Config.from_preset("paper", learning_rate=2e-4)
    assert parse(["--config", str(tmp_path / "settings.yaml")]) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--learnin_rate 1", "learnin_rate"),
        ("--warmup 3", "unrecognized arguments: --warmup"),  # no abbreviations
        ("--preset huge", "huge"),
        ("--num_layers 0", "num_layers must be at least 1. Received: num_layers=0"),
        ("--config nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_mistakes_end_with_a_message(flags, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(flags.split())
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
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"seed": 2**31}, r"seed must be below 2\*\*31. Received: seed=2147483648"),
        ({"dtype_policy": "float16"}, "dtype_policy must be one of float32, mixed_b"),
        ({"steps_per_epoch": 3, "steps_per_execution": 2}, "execution=2. Received: s"),
        ({"preset": "huge"}, "preset must be one of demo, pictures, paper"),
    ],
)
def test_values_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**changes)


def test_every_field_is_documented():
    documented = re.findall(r"^        (\w+): ", Config.__doc__, re.MULTILINE)
    assert sorted(documented) == sorted(f.name for f in dataclasses.fields(Config))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_holds_what_differs_from_its_preset_below_its_command(path):
    settings = yaml.safe_load(path.read_text())
    preset = Config.from_preset(settings.pop("preset", "demo"))
    same = {key for key, value in settings.items() if getattr(preset, key) == value}
    assert same == set()
    config = parse(["--config", str(path)])
    assert config == dataclasses.replace(preset, **settings)
    lines = path.read_text().splitlines()
    assert str(path.relative_to(FOLDER.parent)) in lines[0]
    header = [line for line in lines if line.startswith("#")]
    assert lines[: len(header)] == header
    for what in ("# Machine:", "# Verified:", "# Not verified:"):
        assert any(line.startswith(what) for line in header)
    if path.stem != "cpu":
        assert config.strategy == "tpu" and config.dtype_policy == "mixed_bfloat16"
        assert config.batch_size % REPLICAS[path.stem] == 0
        places = config.data_dir, config.checkpoint_dir, config.tensorboard_dir
        assert all(place.startswith("gs://YOUR_BUCKET/") for place in places)


def test_there_is_a_file_for_each_machine_with_folders_of_its_own():
    assert {path.stem for path in FILES} == {*REPLICAS, "cpu"}
    configs = [parse(["--config", str(path)]) for path in FILES]
    assert len({config.output_dir for config in configs}) == len(FILES)
    assert len({config.backup_dir for config in configs}) == len(FILES)
