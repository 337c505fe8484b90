# On a machine with Python 3.11, git and make:
#
#   make demo [TARGET=file.py:callable]             installs, advises on ResNet-18, tries the fixes, applies what was
#                                                   proved; records and analyses a training run; writes demo-report.html
#   make test [TORCH=2.13.0]                        installs, lints, type-checks, runs the tests
#   make tests [TORCH=2.13.0] [SELECT='not slow'] [TESTS='tests/capture ...']
#                                                   installs, runs these tests
#   make audit                                      asks PyPI for known faults of all that is installed
#   make docs                                       installs, builds the documentation into build/docs
#
# Each torch version has its own virtual environment; constraints.txt names the default one.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test lint tests audit docs clean

PYTHON ?= python3.11
DEFAULT_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(DEFAULT_TORCH)
TARGET ?= benchmarks/zoo.py:resnet18
SELECT ?=
TESTS ?=
JOBS ?= 2

VENV := $(if $(filter $(DEFAULT_TORCH),$(TORCH)),.venv,.venv-$(TORCH))
BIN := $(VENV)/bin
PIN := $(VENV)/constraints.txt
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint $(PIN)
SOURCES := benchmarks/*.py examples/*.py docs/*.py
DEMO_LEDGER := FRX_LEDGER=demo-ledger.sqlite3
comma := ,
define say
@printf '\n\033[1m%s\033[0m\n\n' '$(1)'
endef

demo: $(VENV)/.installed-demo
	$(call say,1. What does the layout of this network cost? frx advise)
	$(BIN)/frx advise $(TARGET) --exit-zero --top 2
	$(call say,2. Are the fixes right$(comma) and faster? frx trial: about two minutes)
	$(DEMO_LEDGER) $(BIN)/frx trial $(TARGET) || test $$? -eq 1
	$(call say,3. What was promoted is applied$(comma) and nothing else: torch.compile(model$(comma) backend="frx"))
	$(DEMO_LEDGER) $(BIN)/python examples/apply.py $(TARGET)
	$(call say,4. A training run: frx collect records it$(comma) frx analyze says what holds it back)
	rm -rf demo-runs
	$(BIN)/frx collect --quiet --out demo-runs --run-id run-demo -- $(BIN)/python examples/train.py
	$(BIN)/frx analyze demo-runs/run-demo.zip --exit-zero
	$(BIN)/frx advise $(TARGET) --exit-zero --format html --output demo-report.html
	$(call say,The advice with pictures: demo-report.html. One rule explained: $(BIN)/frx rules FRX004)

test: lint tests

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

tests: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) $(if $(SELECT),-m "$(SELECT)") $(TESTS)

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
	$(INSTALL) --editable '.[test,docs,fleet,mlflow,ncu,postgres,ray,serve,zoo]'
	touch $@ $(VENV)/.installed-demo $(VENV)/.installed-docs
