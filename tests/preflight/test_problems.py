"""Judging packages and variables that are made up, and models."""

import importlib.metadata

import keras
import pytest
import tensorflow as tf

from keras_performer import preflight

GOOD = {"keras": "3.15.1", "tensorflow": "2.21.0"}
GOOD_TPU = {"keras": "3.15.1", "tensorflow-tpu": "2.19.1", "libtpu": "0.0.10"}


def only(problems):
    """The one sentence that says what is wrong."""
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("versions", "tpu"),
    [
        (GOOD, None),
        (GOOD_TPU, "local"),
        (GOOD_TPU | {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.14"}, "local"),
        (GOOD_TPU | {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.21"}, "local"),
        (GOOD | {"tf-keras": "2.21.0", "libtpu": "0.0.42.1"}, None),
    ],
)
def test_packages_that_work_together_are_no_problem(versions, tpu):
    assert preflight.package_problems(versions, tpu) == []


@pytest.mark.parametrize("other", ["tensorflow", "tensorflow-cpu", "tf-nightly"])
def test_two_tensorflows_are_both_to_be_removed(other):
    sentence = only(preflight.package_problems(GOOD_TPU | {other: "2.19.1"}))
    assert f"{other} and tensorflow-tpu are installed over one another" in sentence
    assert f"`pip uninstall -y {other} tensorflow-tpu`" in sentence
    assert "then `pip install tensorflow-tpu==2.19.1`" in sentence
    assert "--no-deps" in sentence


def test_two_tensorflows_without_tpu_leave_the_first():
    sentence = only(preflight.package_problems(GOOD | {"tensorflow-cpu": "2.21.0"}))
    assert 'then `pip install "tensorflow>=2.19,<2.22"`' in sentence


@pytest.mark.parametrize(
    ("tensorflow", "libtpu", "needed"),
    [
        ("2.19.1", "0.0.14", "needs libtpu 0.0.10, but 0.0.14 is"),
        ("2.19.1", "0.0.9", "needs libtpu 0.0.10, but 0.0.9 is"),
        ("2.19.1", None, "needs libtpu 0.0.10, but none is"),
        ("2.20.0", "0.0.10", "needs libtpu 0.0.14 to 0.0.21, but 0.0.10 is"),
        ("2.20.0", "0.0.42.1", "needs libtpu 0.0.14 to 0.0.21, but 0.0.42.1 is"),
        ("2.20.0", "0.0.51", "needs libtpu 0.0.14 to 0.0.21, but 0.0.51 is"),
    ],
)
def test_wrong_libtpu_names_the_right_one(tensorflow, libtpu, needed):
    versions = {"keras": "3.15.1", "tensorflow-tpu": tensorflow}
    if libtpu:
        versions["libtpu"] = libtpu
    sentence = only(preflight.package_problems(versions))
    assert f"tensorflow-tpu {tensorflow} {needed}" in sentence
    right = {"2.19.1": "0.0.10", "2.20.0": "0.0.14"}[tensorflow]
    assert sentence.endswith(f"`pip install libtpu=={right}`.")


def test_older_tensorflow_for_tpus_is_not_supported():
    sentence = only(preflight.package_problems(GOOD_TPU | {"tensorflow-tpu": "2.18.0"}))
    assert "tensorflow-tpu 2.18.0" in sentence and "==2.19.1" in sentence


def test_tensorflow_without_tpus_is_a_problem_only_if_one_is_required():
    assert preflight.package_problems(GOOD) == []
    sentence = only(preflight.package_problems(GOOD, "local"))
    assert "tensorflow 2.21.0 cannot use a TPU" in sentence
    assert "then `pip install tensorflow-tpu==2.19.1`" in sentence


@pytest.mark.parametrize("outside", ["2.15.0", "3.0.0", "3.9.2", "4.0.0"])
def test_keras_outside_of_what_setup_allows(outside):
    assert only(preflight.package_problems(GOOD | {"keras": outside})) == (
        f'keras {outside} is not within >=3.10,<4: `pip install "keras>=3.10,<4"`.'
    )


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
@pytest.mark.parametrize("outside", ["2.9.0", "2.16.1", "2.18.1", "2.22.0", "3.0.0"])
def test_tensorflow_outside_of_what_setup_allows(name, outside):
    versions = {"keras": "3.15.1", name: outside}
    assert only(preflight.package_problems(versions)) == (
        f"{name} {outside} is not within >=2.19,<2.22: "
        f'`pip install "{name}>=2.19,<2.22"`.'
    )


@pytest.mark.parametrize("keras_version", ["3.10.0", "3.100.0"])
@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
@pytest.mark.parametrize("version", ["2.19.0", "2.21.9"])
def test_the_first_and_the_last_version_that_setup_allows(keras_version, name, version):
    versions = {"keras": keras_version, name: version}
    assert preflight.package_problems(versions) == []


def test_keras_and_tensorflow_may_both_be_wrong():
    problems = preflight.package_problems({"keras": "3.0.0", "tensorflow": "2.16.1"})
    assert [problem.split(" is ")[0] for problem in problems] == [
        "tensorflow 2.16.1",
        "keras 3.0.0",
    ]


def test_missing_keras_is_a_problem():
    sentence = only(preflight.package_problems({"tensorflow": "2.21.0"}))
    assert sentence == 'keras is not installed: `pip install "keras>=3.10,<4"`.'


def test_the_bounds_are_those_of_the_installed_package(monkeypatch):
    required = ["keras<7,>=6.1", 'tensorflow<9,>=8; extra == "tensorflow"', "numpy"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: required)
    later = {"keras": "6.1.0", "tensorflow": "8.0.1"}
    assert preflight.package_problems(later) == []
    problems = preflight.package_problems(GOOD)
    assert "tensorflow 2.21.0 is not within >=8,<9" in problems[0]
    assert "keras 3.15.1 is not within >=6.1,<7" in problems[1]


def test_without_the_installed_package_nothing_says_which_versions(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", requires)
    assert "`pip install -e .`" in only(preflight.package_problems(GOOD))
    wrong_libtpu = preflight.package_problems(GOOD_TPU | {"libtpu": "0.0.48"})
    assert len(wrong_libtpu) == 2  # what is known without it is still said


def test_environment_of_the_tests_is_no_problem():
    assert preflight.environment_problems() == []


def test_legacy_keras_is_a_problem_in_the_words_of_the_import(monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    sentence = only(preflight.environment_problems())
    assert "TF_USE_LEGACY_KERAS=1" in sentence and "unset it" in sentence


def test_keras_json_without_an_object_is_a_problem_too(monkeypatch, tmp_path):
    monkeypatch.delattr(keras.config, "backend")  # as if Keras were not yet imported
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text("[]")
    sentence = only(preflight.environment_problems())
    assert f"in {tmp_path}/keras.json, but it holds []: delete that file" in sentence


@pytest.mark.parametrize(
    ("name", "flags", "forced"),
    [
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2", True),
        ("TF_XLA_FLAGS", "--tf_mlir_enable_mlir_bridge=true", False),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=0", False),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=-1 --tf_xla_cpu_global_jit", False),
        ("XLA_FLAGS", "--a=b --tf_xla_auto_jit=1", True),
    ],
)
def test_xla_forced_by_a_variable(monkeypatch, name, flags, forced):
    monkeypatch.setenv(name, flags)
    problems = preflight.environment_problems()
    if forced:
        assert only(problems).startswith(f"{name}={flags} forces XLA")
    else:
        assert problems == []


@pytest.mark.parametrize(
    "name", ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "TPU_LIBRARY_PATH"]
)
def test_library_that_is_not_there(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, str(tmp_path / "libtpu.so"))
    assert f"{name}={tmp_path}/libtpu.so is not" in only(
        preflight.environment_problems()
    )
    (tmp_path / "libtpu.so").touch()
    assert preflight.environment_problems() == []


@pytest.mark.parametrize("jit_compile", ["auto", False, True])
@pytest.mark.parametrize("replicas", [0, 2])
def test_forced_jit_compile_is_a_problem_under_a_strategy(jit_compile, replicas):
    devices = [f"CPU:{i}" for i in range(replicas)]
    strategy = (
        tf.distribute.MirroredStrategy(devices)
        if replicas
        else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)], name="a_model")
        assert preflight.model_problems(model) == []  # not compiled yet
        model.compile("sgd", "mse", jit_compile=jit_compile)
    problems = preflight.model_problems(model)
    if jit_compile is True and replicas:
        sentence = only(problems)
        assert "'a_model' was compiled with jit_compile=True" in sentence
        assert "MirroredStrategy" in sentence and '`jit_compile="auto"`' in sentence
    else:
        assert problems == []
