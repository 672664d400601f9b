# `make demo` and `make test` need Python 3.11 (or newer, which we do not test) and
# nothing else: both install everything they use into .venv first.

PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
# The TensorFlow to install. `make TENSORFLOW="tensorflow[and-cuda]" demo` adds the CUDA
# libraries for an NVIDIA GPU. Do not use tensorflow-cpu here: see setup.cfg.
TENSORFLOW ?= tensorflow
# The versions that `make test-matrix` tests: all that setup.cfg allows. 2.19-keras-3.10
# is the oldest TensorFlow with the oldest Keras; the others use the newest Keras.
VERSIONS ?= 2.19-keras-3.10 2.19 2.20 2.21
# Number of test processes, of up to 2 GB each; 0 runs tests in pytest's own process.
WORKERS ?= 2
# Further arguments of the program, as in `make demo ARGS=--help`.
ARGS ?=

# Show only errors of TensorFlow; 2.21 still prints a few lines while it loads.
TF_CPP_MIN_LOG_LEVEL ?= 2
export TF_CPP_MIN_LOG_LEVEL

python := .venv/bin/python
installed := .venv/.installed
# An idle worker takes tests from the end of another worker's list.
pytest := pytest --numprocesses $(WORKERS) --dist worksteal

# The last part has all tests that are in none of the first three.
first := keras_performer tests/benchmarks tests/docs tests/examples
second := tests/golden tests/layers tests/models
third := tests/callbacks tests/ops
rest := tests $(patsubst %,--ignore=%,$(filter tests/%,$(first) $(second) $(third)))
parts := "$(first)" "$(second)" "$(third)" "$(rest)"

.DEFAULT_GOAL := help
.PHONY: help demo quickstart test lint bench clean convert tpu-check hub-check litert-check test-matrix dist

help:
	@echo "make demo        train on 64x64 photographs, generate, write runs/demo"
	@echo "make quickstart  four attentions look up a far answer, two minutes"
	@echo "make test        lint, then the whole test suite"
	@echo "make bench       speed and memory beside other libraries, into runs/bench"
	@echo "make bench-learning  small models that learn with each attention, and without"
	@echo "make bench-long-range  the attentions of the field on tasks of long sequences"
	@echo "make bench-accuracy  the error of random and Taylor features"
	@echo "make convert     trained models with linear attention in place of theirs"
	@echo "make docs        the documentation as pages, into site"
	@echo "make notebooks   run the notebooks of docs/notebooks, and write their pages"
	@echo "make test-matrix the suite on each TensorFlow, 2.19 to 2.21, and old Keras"
	@echo "make tpu-check   compile the TPU configurations with the TPU compiler"
	@echo "make hub-check   the tests that need KerasHub, on its newest release"
	@echo "make litert-check  the tests of LiteRT, in its interpreters"
	@echo "make browser-check  the tests of the served page, which need a Chromium"
	@echo "make lint        ruff, its format, and the type checker"
	@echo "make dist        the archives of a release, into dist"
	@echo "make .venv       only install into .venv (the others do it when needed)"
	@echo "make clean       remove .venv, .bench, all that was built; keeps runs/"

demo: $(installed)
	$(python) -m examples.imagenet64.train $(ARGS)

quickstart: $(installed)
	$(python) -m examples.quickstart $(ARGS)

# With ARGS one pytest runs all. Without ARGS the suite runs in parts: TensorFlow keeps
# all that a process compiles, and one process would take 8 GB.
test: lint
ifeq ($(strip $(ARGS)),)
	failed=0; for part in $(parts); do \
		$(python) -m $(pytest) $$part || failed=1; \
	done; exit $$failed
else
	$(python) -m $(pytest) $(ARGS)
endif

lint: $(installed)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy

# The other libraries are installed into .bench, each in the environment it needs.
bench: $(installed)
	$(python) -m benchmarks.measure $(ARGS)
	$(python) -m benchmarks.decoding

# Core cases, an hour on two CPU cores. ARGS="--steps 20 --output runs/trial" tries it.
.PHONY: bench-learning
bench-learning: $(installed)
	$(python) -m benchmarks.learning $(ARGS)

# Core cases, within two hours on two CPU cores. ARGS is as in bench-learning.
.PHONY: bench-long-range
bench-long-range: $(installed)
	$(python) -m benchmarks.long_range $(ARGS)

# Five minutes on two CPU cores.
.PHONY: bench-accuracy
bench-accuracy: $(installed)
	$(python) -m benchmarks.accuracy $(ARGS)

# Downloads 100 MB into runs/conversion the first time.
convert: $(installed)
	$(python) -m benchmarks.conversion $(ARGS)

# Builds into an empty folder, so that twine checks only the new archives.
dist: .venv/.dist
	rm -rf dist
	$(python) -m build
	$(python) -m twine check --strict dist/*

.venv/.dist: $(installed)
	$(python) -m pip install --disable-pip-version-check --editable ".[dist]"
	@touch $@

# Builds the pages without TensorFlow: griffe reads docstrings, and imports nothing.
.PHONY: docs docs-pictures
docs: .docs/.installed
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --strict --quiet
	.docs/bin/python docs/check_links.py site
	@echo "Open site/index.html. The search works there, too."

# Runs each .py file of docs/notebooks; ARGS="documents" runs one of them.
.PHONY: notebooks
notebooks: .venv/.notebooks
	$(python) -m docs.build_notebooks $(ARGS)

.venv/.notebooks: $(installed)
	$(python) -m pip install --disable-pip-version-check --editable ".[notebooks]"
	@touch $@

# A few minutes, because one picture trains small models. ARGS=replace draws only that.
docs-pictures: $(installed)
	$(python) -m docs.pictures $(ARGS)

.docs/.installed: setup.cfg
	$(PYTHON) -m venv .docs
	.docs/bin/python -m pip install --disable-pip-version-check --editable ".[docs]"
	@touch $@

.PHONY: .venv
.venv: $(installed)

# The TPU compiler is a separate package. It needs no TPU, and no network afterwards.
tpu-check: .tpu/.installed
	.tpu/bin/python -m pytest tests/tpu $(ARGS)

.tpu/.installed: setup.cfg pyproject.toml
	@echo "Installing the TPU compiler into .tpu: about 1.5 GB to download."
	$(PYTHON) -m venv .tpu
	.tpu/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test,tpu-check]"
	@touch $@

# KerasHub requires a newer Keras than we do, and installs tensorflow-text.
hub-check: .hub/.installed
	.hub/bin/python -m pytest tests/keras_hub $(ARGS)

.hub/.installed: setup.cfg pyproject.toml
	@echo "Installing KerasHub into .hub: about 1 GB to download."
	$(PYTHON) -m venv .hub
	.hub/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test,keras-hub]"
	@touch $@

# LiteRT's interpreter is a separate package of 20 MB.
litert-check: .litert/.installed
	.litert/bin/python -m pytest tests/litert $(ARGS)

.litert/.installed: setup.cfg pyproject.toml
	@echo "Installing LiteRT into .litert: about 1 GB to download."
	$(PYTHON) -m venv .litert
	.litert/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test,litert]"
	@touch $@

# Set CHROMIUM=/path/to/chromium if it is not on the PATH.
.PHONY: browser-check
browser-check: .venv/.browser
	$(python) -m pytest tests/browser $(ARGS)

.venv/.browser: $(installed)
	$(python) -m pip install --disable-pip-version-check --editable ".[browser]"
	@touch $@

# Tests the newest patch of each version, in a separate environment.
test-matrix: $(VERSIONS:%=.matrix/%/.installed)
	set -e; for version in $(VERSIONS); do \
		echo "TensorFlow $$version"; \
		.matrix/$$version/bin/python -m $(pytest) $(ARGS); \
	done

# The words of `%`, such as 2.19-keras-3.10 or 2.20, and pip's requirement for Keras.
versions = $(subst -keras-, ,$*)
keras = $(patsubst %,"keras==%.*",$(word 2,$(versions)))

.matrix/%/.installed: setup.cfg pyproject.toml
	@echo "Installing TensorFlow $* into .matrix/$*: about 1 GB to download."
	$(PYTHON) -m venv .matrix/$*
	.matrix/$*/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test]" \
		"$(TENSORFLOW)==$(firstword $(versions)).*" $(keras)
	@touch $@

# Installs again when setup.cfg or pyproject.toml has changed.
$(installed): setup.cfg pyproject.toml
	@echo "Installing into .venv: about 1 GB to download, some minutes."
	$(PYTHON) -m venv .venv
	$(python) -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test]" "$(TENSORFLOW)"
	@touch $@

clean:
	rm -rf .venv .bench .docs .tpu .hub .litert .matrix build site dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find examples keras_performer tests -name __pycache__ -prune -exec rm -rf {} +
