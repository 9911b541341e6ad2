# `make demo` and `make test` set up everything they need in .venv; nothing else has to be installed first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check docs clean

demo: $(READY)
	$(BIN)/tagi train mnist --epochs 1 --out runs/demo --overwrite

test: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

docs: $(READY)  # the pages of numbers, from the logs in results/
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/results_page.py
	$(BIN)/python benchmarks/baselines_page.py
	$(BIN)/python benchmarks/parallel.py --page

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
