# Every target does its own set-up: a virtual environment in .venv, with the versions of constraints.txt. The demo runs
# in the environment that is active, where fullbore is installed there, and otherwise needs .venv without the tools.
# pip's own variables hold here too; for torch without CUDA: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ACTIVE := $(if $(VIRTUAL_ENV),$(wildcard $(VIRTUAL_ENV)/bin/fullbore))
# Tests of one process each share the cores; those that start processes themselves have them to themselves.
ALONE := tests/unit tests/property tests/golden
TOGETHER := tests/distributed tests/e2e

.PHONY: help setup demo test test-all check fmt golden clean

help:
	@echo "make setup     fullbore, torch and the tools for tests in .venv"
	@echo "make demo      train a small Llama on real text through two stages (about 4 minutes on 2 cores)"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make check     format, lint, types, import contracts"
	@echo "make fmt       format and fix what can be fixed"
	@echo "make golden    rebuild the golden files; review them as a diff"

setup: .venv/ready

.venv/runs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "installing fullbore and torch into .venv: minutes without a line"
	$(INSTALL) -e .
	@touch $@

.venv/ready: .venv/runs
	@echo "installing the tools for tests and checks into .venv: a minute or more without a line"
	$(INSTALL) -e ".[dev]"
	@touch $@

demo: $(if $(ACTIVE),,.venv/runs)
	$(or $(ACTIVE),$(BIN)/fullbore) train

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu" -n auto $(ALONE)
	$(BIN)/python -m pytest -m "not slow and not gpu" $(TOGETHER)

test-all: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(ALONE)
	$(BIN)/python -m pytest $(TOGETHER)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: setup
	$(BIN)/python -m tests.golden.regenerate

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
