# On a machine with Python 3.11, git and make:
#
#   make demo [TARGET=file.py:callable]             installs, advises on SegFormer-B0, writes demo-report.html
#   make test [TORCH=2.13.0] [SELECT='not slow']    installs, lints, type-checks, runs the tests
#   make docs                                       installs, builds the documentation into build/docs
#
# Each torch version has its own virtual environment; constraints.txt names the default one.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test docs clean

PYTHON ?= python3.11
DEFAULT_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(DEFAULT_TORCH)
TARGET ?= benchmarks/zoo.py:segformer
SELECT ?=
JOBS ?= 2

VENV := $(if $(filter $(DEFAULT_TORCH),$(TORCH)),.venv,.venv-$(TORCH))
BIN := $(VENV)/bin
PIN := $(VENV)/constraints.txt
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint $(PIN)
SOURCES := benchmarks/*.py examples/*.py docs/*.py

demo: $(VENV)/.installed-demo
	$(BIN)/frx advise $(TARGET) --exit-zero --top 5
	$(BIN)/frx advise $(TARGET) --exit-zero --format html --output demo-report.html
	@echo "The same with pictures: demo-report.html. One rule explained: $(BIN)/frx rules FRX002."

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n $(JOBS) $(if $(SELECT),-m "$(SELECT)")

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/docs/index.html."

clean:
	rm -rf build demo-report.html .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(PIN): constraints.txt | $(BIN)/python
	sed 's/^torch==.*/torch==$(TORCH)/' $< > $@

$(VENV)/.installed-demo: pyproject.toml $(PIN)
	@echo "Installing frx-graph with torch $(TORCH) into $(VENV); the first time this downloads torch."
	$(INSTALL) --editable '.[zoo]'
	touch $@

$(VENV)/.installed-docs: pyproject.toml $(PIN)
	$(INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/.installed-test: pyproject.toml $(PIN)
	@echo "Installing frx-graph with torch $(TORCH) and its test tools into $(VENV); the first time this downloads torch."
	$(INSTALL) --editable '.[test,docs,ncu,zoo]'
	touch $@ $(VENV)/.installed-demo $(VENV)/.installed-docs
