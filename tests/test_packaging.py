"""Metadata that pip reads about the package."""

import configparser
import importlib.metadata
import importlib.resources
import pathlib
import re
import runpy

import yaml
from packaging.requirements import Requirement

import keras_performer

ROOT = pathlib.Path(__file__).parents[1]


def test_base_requirements_leave_the_choice_of_tensorflow_open():
    requirements = map(Requirement, importlib.metadata.requires("keras_performer"))
    without_extras = {one.name for one in requirements if one.marker is None}
    assert without_extras == {"keras", "numpy"}


def test_pythons_that_are_named_are_those_that_are_tested():
    metadata = importlib.metadata.metadata("keras_performer")
    named = {
        classifier.rpartition(" ")[2]
        for classifier in metadata.get_all("Classifier")
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", classifier)
    }
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    steps = [step.get("with", {}) for step in workflow["jobs"]["test"]["steps"]]
    tested = {step["python-version"] for step in steps if "python-version" in step}
    assert named == tested == {"3.11"}
    assert "python3.11" in (ROOT / "Makefile").read_text()


def test_the_package_alone_is_shipped_with_its_hints_and_doctests_are_run():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["packages"] == "find:"
    assert setup["options.packages.find"]["include"] == "keras_performer*"
    distribution = importlib.metadata.distribution("keras_performer")
    assert distribution.read_text("top_level.txt").split() == ["keras_performer"]
    # setuptools silently leaves out folders without __init__.py
    folders = {path.parent for path in (ROOT / "keras_performer").rglob("*.py")}
    assert [str(f) for f in folders if not (f / "__init__.py").exists()] == []
    assert importlib.resources.files("keras_performer").joinpath("py.typed").is_file()
    assert setup["options.package_data"]["keras_performer"] == "py.typed"
    assert setup["tool:pytest"]["testpaths"].split() == ["keras_performer", "tests"]
    assert "--doctest-modules" in setup["tool:pytest"]["addopts"].split()


def targets(markdown):
    """Returns the targets of links and pictures, in Markdown and in HTML."""
    links = re.findall(r"\]\(([^)\s]*)", markdown)
    return links + re.findall(r"""(?:href|src)=["']([^"']*)""", markdown)


def test_the_text_for_indexes_has_links_of_the_web_only():
    setup = runpy.run_path(str(ROOT / "setup.py"))
    description_for_indexes = setup["description_for_indexes"]
    readme = (ROOT / "README.md").read_text()
    text = description_for_indexes(readme)
    wrong = [x for x in targets(text) if not x.startswith(("https://", "#"))]
    assert wrong == []
    assert len(text) > 0.8 * len(readme)
    assert description_for_indexes(
        "See [the page](docs/a.md), [b](#b), [c](https://c.org).\n\n"
        "![A picture](docs/a.png)\n\n*Its caption\n([c](docs/c.md)).*\n\n"
        "![Another](docs/b.png)\n\nEnd"
    ) == ("See the page, [b](#b), [c](https://c.org).\n\nEnd")


def test_installed_version_is_the_one_in_the_source():
    installed = importlib.metadata.version("keras_performer")
    assert installed == keras_performer.__version__, (
        "the version has changed since the package was installed: "
        "`touch setup.cfg && make .venv`"
    )


def test_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == keras_performer.__version__
    assert citation["license"] == "Apache-2.0"
