# On a machine with Python 3.11, git and make:
#
#   make demo [TARGET=file.py:callable]   install, advise on ResNet-18, show a fix of the source, try the changes of the
#                                         graph, apply what was proved; record and analyse a training run; write
#                                         demo-report.html
#   make test                             install, lint, check types and import directions, run unit and component tests
#   make test-all                         make test, then real processes, compilers, models and servers, then an older torch
#   make test-nightly                     long fuzzing, random programs, sweeps
#   make tests [TORCH=2.13.0] [SELECT='integration'] [TESTS='tests/capture ...']
#                                         install, run these tests
#   make audit                            ask PyPI for known vulnerabilities of all that is installed
#   make docs                             install, build the documentation into build/docs
#
# Each torch version has its own virtual environment; constraints.txt names the default one.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test test-all test-integration test-older-torch test-nightly lint tests audit docs clean

PYTHON ?= python3.11
DEFAULT_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(DEFAULT_TORCH)
TARGET ?= benchmarks/zoo.py:resnet18
OLDER_TORCH ?= 2.13.0
SELECT ?= not integration and not nightly
TESTS ?=
JOBS ?= 2

VENV := $(if $(filter $(DEFAULT_TORCH),$(TORCH)),.venv,.venv-$(TORCH))
BIN := $(VENV)/bin
PIN := $(VENV)/constraints.txt
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint $(PIN)
SOURCES := benchmarks/*.py benchmarks/*/*.py examples/*.py docs/*.py
DEMO_LEDGER := FRX_LEDGER=demo-ledger.sqlite3
comma := ,
define say
@printf '\n\033[1m%s\033[0m\n\n' '$(1)'
endef

demo: $(VENV)/.installed-demo
	$(call say,1. What does the layout of this network cost? frx advise)
	$(BIN)/frx advise $(TARGET) --exit-zero --top 2
	$(call say,2. What would a fix look like in the source? frx fix$(comma) on a small transformer)
	$(BIN)/frx fix examples/attention.py:build || test $$? -eq 1
	$(call say,3. Are changes of the graph right$(comma) and faster? frx trial: about two minutes)
	$(DEMO_LEDGER) $(BIN)/frx trial $(TARGET) || test $$? -eq 1
	$(call say,4. Does what was promoted keep its promise? torch.compile(model$(comma) backend="frx"): about a minute)
	$(DEMO_LEDGER) $(BIN)/python examples/apply.py $(TARGET)
	$(call say,5. A training run: frx collect records it$(comma) frx analyze says what holds it back)
	rm -rf demo-runs
	$(BIN)/frx collect --quiet --out demo-runs --run-id run-demo -- $(BIN)/python examples/train.py
	$(BIN)/frx analyze demo-runs/run-demo.zip --exit-zero
	$(BIN)/frx advise $(TARGET) --exit-zero --format html --output demo-report.html
	$(call say,The advice with pictures: demo-report.html. One rule explained: $(BIN)/frx rules FRX004)

test: lint tests

test-all: test test-integration test-older-torch

test-integration: $(VENV)/.installed-all
	FRX_TIER=all $(PYTEST) -m "integration and not nightly" $(TESTS)

# Rooms in which torch's version matters: tracing, compiling, rewriting, watching.
test-older-torch:
	$(MAKE) tests TORCH=$(OLDER_TORCH) TESTS="tests/test_backend.py tests/test_programs_once_wrong.py $(addprefix tests/,\
	    advisor capture compiler facts freezing measure/inductor measure/operators monitor ops passes prepack promotion \
	    serialization trial_worker wrapper)"

test-nightly: $(VENV)/.installed-all
	FRX_TIER=nightly $(PYTEST) -m "nightly or not integration" $(TESTS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

tests: $(VENV)/.installed-test
	$(PYTEST) -m "$(SELECT)" $(TESTS)

audit: $(VENV)/.installed-test
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > build/audit/installed.txt
	build/audit/bin/pip-audit --requirement build/audit/installed.txt --no-deps --disable-pip

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/docs/index.html."

clean:
	rm -rf build demo-report.html demo-runs demo-ledger.sqlite3* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(PIN): constraints.txt | $(BIN)/python
	sed 's/^torch==.*/torch==$(TORCH)/' $< > $@

$(VENV)/.installed-demo: pyproject.toml $(PIN)
	@echo "Installing frx-graph with torch $(TORCH) into $(VENV); the first time this downloads torch."
	$(INSTALL) --editable '.[demo]'
	touch $@

$(VENV)/.installed-docs: pyproject.toml $(PIN)
	$(INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/.installed-test: pyproject.toml $(PIN)
	@echo "Installing frx-graph with torch $(TORCH) and its test tools into $(VENV); the first time this downloads torch."
	$(INSTALL) --editable '.[test,docs,fleet,ncu,postgres,serve]'
	touch $@

$(VENV)/.installed-all: pyproject.toml $(PIN)
	@echo "Installing frx-graph with torch $(TORCH) and all that any test needs into $(VENV)."
	$(INSTALL) --editable '.[test,test-all,docs,fleet,mlflow,ncu,postgres,ray,serve,zoo]'
	touch $@ $(VENV)/.installed-test $(VENV)/.installed-demo $(VENV)/.installed-docs
