# The two commands a newcomer needs: `make compare` draws the main picture, `make test` runs every test. `make docs` builds
# the site into docs/_build/html and runs what it shows.
PYTHON ?= python3
BIN := .venv/bin
# compiled modules are kept, half of what a start of the tests costs
export PYTHONDONTWRITEBYTECODE :=

.PHONY: compare test test-all lint style types layers docs bench

.venv/.installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $@

.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,docs]'
	touch $@

bench: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	$(BIN)/python -m experiments.benchmarks

compare: .venv/.installed
	$(BIN)/mfdl compare --out results/compare

test: .venv/.installed
	$(BIN)/python -m pytest

test-all: .venv/.installed
	MFDL_EFFORT=1 $(BIN)/python -m pytest -m "slow or not slow"

lint: style types layers

style: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy

layers: .venv/.installed
	$(BIN)/lint-imports

docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
	touch docs/_build/done
