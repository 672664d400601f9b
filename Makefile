# `make demo` and `make test` need Python 3.11 (or newer, which we do not test) and
# nothing else: both install everything they use into .venv first.

PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
# What else to install. `make TENSORFLOW="tensorflow[and-cuda]" demo` adds the CUDA
# libraries for an NVIDIA GPU. (tensorflow-cpu is no choice here: see setup.cfg.)
TENSORFLOW ?= tensorflow
# What `make test-matrix` tests: all that setup.cfg allows. 2.19-keras-3.10 is the
# oldest TensorFlow with the oldest Keras; the others take the newest.
VERSIONS ?= 2.19-keras-3.10 2.19 2.20 2.21
# How many processes share the tests, of up to 2 GB each; 0 for none beside pytest's own.
WORKERS ?= 2
# Further arguments of the program, as in `make demo ARGS=--help`.
ARGS ?=

# Keep TensorFlow's errors only; 2.21 still greets with a few lines while it loads.
TF_CPP_MIN_LOG_LEVEL ?= 2
export TF_CPP_MIN_LOG_LEVEL

python := .venv/bin/python
installed := .venv/.installed
# A worker that has nothing left to do takes tests from the other's end.
pytest := pytest --numprocesses $(WORKERS) --dist worksteal

# Whatever is in none of the first three is in the last.
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
	@echo "make bench-accuracy  the paper's figures that a CPU can make, its laws as checks"
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

# With ARGS in one go; the whole in parts, as TensorFlow keeps all that it compiles for
# as long as a process lives: in one go it takes 8 GB.
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
	$(python) -m benchmarks.report

# The core, within the hour on two cores; ARGS=--quick for a look, --full for a day.
.PHONY: bench-learning
bench-learning: $(installed)
	$(python) -m benchmarks.learning $(ARGS)

# The core, within two hours on two cores; ARGS=--quick or --full.
.PHONY: bench-long-range
bench-long-range: $(installed)
	$(python) -m benchmarks.long_range $(ARGS)

# Five minutes on two cores, after the peers are installed; ARGS=--quick for a look,
# ARGS=--no-install with the peers that are there.
.PHONY: bench-accuracy
bench-accuracy: $(installed)
	$(python) -m benchmarks.accuracy $(ARGS)

# Downloads 100 MB into runs/conversion the first time.
convert: $(installed)
	$(python) -m benchmarks.conversion $(ARGS)

# Into an empty folder, so that what is checked is what was built.
dist: .venv/.dist
	rm -rf dist
	$(python) -m build
	$(python) -m twine check --strict dist/*

.venv/.dist: $(installed)
	$(python) -m pip install --disable-pip-version-check --editable ".[dist]"
	@touch $@

# The pages, in an environment without TensorFlow: docstrings are read, not imported.
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

# A few minutes: one of them trains small models. ARGS=replace draws that one alone.
docs-pictures: $(installed)
	$(python) -m docs.pictures $(ARGS)

.docs/.installed: setup.cfg
	$(PYTHON) -m venv .docs
	.docs/bin/python -m pip install --disable-pip-version-check --editable ".[docs]"
	@touch $@

.PHONY: .venv
.venv: $(installed)

# The TPU compiler is a package of its own: no TPU, and no network once installed.
tpu-check: .tpu/.installed
	.tpu/bin/python -m pytest tests/tpu $(ARGS)

.tpu/.installed: setup.cfg pyproject.toml
	@echo "Installing the TPU compiler into .tpu: about 1.5 GB to download."
	$(PYTHON) -m venv .tpu
	.tpu/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test,tpu-check]"
	@touch $@

# KerasHub asks for a newer Keras than we do, and brings tensorflow-text.
hub-check: .hub/.installed
	.hub/bin/python -m pytest tests/keras_hub $(ARGS)

.hub/.installed: setup.cfg pyproject.toml
	@echo "Installing KerasHub into .hub: about 1 GB to download."
	$(PYTHON) -m venv .hub
	.hub/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test,keras-hub]"
	@touch $@

# LiteRT's interpreter is a package of its own, of 20 MB.
litert-check: .litert/.installed
	.litert/bin/python -m pytest tests/litert $(ARGS)

.litert/.installed: setup.cfg pyproject.toml
	@echo "Installing LiteRT into .litert: about 1 GB to download."
	$(PYTHON) -m venv .litert
	.litert/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test,litert]"
	@touch $@

# CHROMIUM=/path/to/it if it is not on the PATH.
.PHONY: browser-check
browser-check: .venv/.browser
	$(python) -m pytest tests/browser $(ARGS)

.venv/.browser: $(installed)
	$(python) -m pip install --disable-pip-version-check --editable ".[browser]"
	@touch $@

# Each version in an environment of its own; the newest patch of it.
test-matrix: $(VERSIONS:%=.matrix/%/.installed)
	set -e; for version in $(VERSIONS); do \
		echo "TensorFlow $$version"; \
		.matrix/$$version/bin/python -m $(pytest) $(ARGS); \
	done

# What `%` names, 2.19-keras-3.10 or 2.20, as words, and what pip is to install of Keras.
versions = $(subst -keras-, ,$*)
keras = $(patsubst %,"keras==%.*",$(word 2,$(versions)))

.matrix/%/.installed: setup.cfg pyproject.toml
	@echo "Installing TensorFlow $* into .matrix/$*: about 1 GB to download."
	$(PYTHON) -m venv .matrix/$*
	.matrix/$*/bin/python -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test]" \
		"$(TENSORFLOW)==$(firstword $(versions)).*" $(keras)
	@touch $@

# Installed again when setup.cfg has changed.
$(installed): setup.cfg pyproject.toml
	@echo "Installing into .venv: about 1 GB to download, some minutes."
	$(PYTHON) -m venv .venv
	$(python) -m pip install --disable-pip-version-check \
		--editable ".[tensorflow,examples,test]" "$(TENSORFLOW)"
	@touch $@

clean:
	rm -rf .venv .bench .docs .tpu .hub .litert .matrix build site dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find examples keras_performer tests -name __pycache__ -prune -exec rm -rf {} +
