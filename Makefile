# Every target sets up what it needs: a virtual environment in .venv, made from pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-torch e2e lint bench bench-scaling bench-scale bench-reading accuracy tables verdict error-bars pictures clean

.venv/demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/dev: pyproject.toml .venv/demo
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/demo
	$(BIN)/dpfedc demo --output demo

test: lint
	$(BIN)/python -m pytest -n 2

.venv/gpu: pyproject.toml .venv/dev
	$(BIN)/python -m pip install --quiet --editable '.[gpu]' triton
	touch $@

test-torch: .venv/gpu
	$(BIN)/python -m pytest tests/kernels/test_torch.py tests/clustering/test_restarts.py

e2e: .venv/dev
	$(BIN)/python -m pytest -m e2e tests/e2e

lint: .venv/dev
	$(BIN)/ruff check src tests benchmarks examples docs/pictures
	$(BIN)/ruff format --check src tests benchmarks examples docs/pictures
	$(BIN)/mypy
	$(BIN)/lint-imports

accuracy: .venv/dev
	$(BIN)/python benchmarks/accuracy.py

tables: .venv/dev
	$(BIN)/python benchmarks/tables.py

# Whether the verdict and the error bars are right: run them again when a default changes.
verdict: .venv/dev
	$(BIN)/python benchmarks/verdict.py --after

error-bars: .venv/dev
	$(BIN)/python benchmarks/error_bars.py

# Those of docs/concepts.md, and the figures in its text.
pictures: .venv/dev
	$(BIN)/python docs/pictures/make_pictures.py

bench: .venv/dev
	$(BIN)/python benchmarks/speed.py

bench-scaling: .venv/dev
	$(BIN)/python benchmarks/scaling.py

# Needs 2 GB of disk in the folder for temporary files.
bench-reading: .venv/dev
	$(BIN)/python benchmarks/reading.py

# Needs 4 GB of disk in FOLDER.
FOLDER ?= results/bench
bench-scale: .venv/dev
	$(BIN)/python benchmarks/scale.py --folder $(FOLDER)

clean:
	rm -rf .venv demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
