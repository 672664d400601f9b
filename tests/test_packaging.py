"""What pip is told about the package."""

import configparser
import importlib.metadata
import pathlib

import pytest
from packaging.requirements import Requirement

import keras_performer

ROOT = pathlib.Path(__file__).parents[1]


def required_names(extra=""):
    """Returns the projects that pip installs for one extra, or for none."""
    requirements = importlib.metadata.requires("keras_performer")
    with_extra, without_extra = (
        {
            requirement.name
            for requirement in map(Requirement, requirements)
            if requirement.marker is None or requirement.marker.evaluate({"extra": e})
        }
        for e in (extra, "")
    )
    return with_extra - without_extra if extra else without_extra


def test_base_requirements_leave_the_choice_of_tensorflow_open():
    assert required_names() == {"keras", "numpy"}


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("tensorflow", {"tensorflow"}),
        ("cpu", {"tensorflow-cpu"}),
        ("examples", {"tensorflow-probability", "tf-keras", "scikit-learn"}),
        ("test", {"keras_performer", "pytest", "scipy", "ruff"}),
    ],
)
def test_extra_brings(extra, names):
    assert names <= required_names(extra)


def test_no_other_extra_brings_tensorflow():
    for extra in ("examples", "test"):
        assert not {"tensorflow", "tensorflow-cpu"} & required_names(extra)


def test_ranges_of_versions():
    metadata = importlib.metadata.metadata("keras_performer")
    assert metadata["Requires-Python"] == ">=3.10"
    versions = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, metadata.get_all("Requires-Dist"))
    }
    supported = [v in versions["keras"] for v in ("3.9.2", "3.10.0", "3.15.1", "4.0.0")]
    assert supported == [False, True, True, False]
    for name in ("tensorflow", "tensorflow-cpu", "tf-keras"):
        supported = [f"2.{minor}.0" in versions[name] for minor in range(18, 23)]
        assert supported == [False, True, True, True, False]


def test_installed_version_is_the_one_in_the_source():
    installed = importlib.metadata.version("keras_performer")
    assert installed == keras_performer.__version__, (
        "the version has changed since the package was installed: "
        "`touch setup.cfg && make .venv`"
    )


def test_licence_is_named_and_shipped():
    metadata = importlib.metadata.metadata("keras_performer")
    assert "Apache-2.0" in (metadata["License-Expression"], metadata["License"])
    assert metadata.get_all("License-File") == ["LICENSE"]


def test_every_folder_of_code_is_a_package_and_shipped():
    # setuptools leaves out a folder without __init__.py, and says nothing.
    package = ROOT / "keras_performer"
    folders = {path.parent for path in package.rglob("*.py")}
    assert [str(f) for f in folders if not (f / "__init__.py").exists()] == []


def test_only_the_package_is_shipped():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["packages"] == "find:"
    assert setup["options.packages.find"]["include"] == "keras_performer*"
    top_level = importlib.metadata.distribution("keras_performer").read_text(
        "top_level.txt"
    )
    assert top_level.split() == ["keras_performer"]


def test_examples_in_docstrings_are_run():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    pytest_options = setup["tool:pytest"]
    assert pytest_options["testpaths"].split() == ["keras_performer", "tests"]
    assert "--doctest-modules" in pytest_options["addopts"].split()
