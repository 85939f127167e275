PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
FILES ?= 1000000
FOLDERS ?= 2000

.DEFAULT_GOAL := help
.PHONY: help demo fast test check docs rooms fuzz bench reproduce results clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY)  ## Set up .venv and run the whole route on LeNet-300-100 and MNIST; the run is left in runs/demo
	$(BIN)/softshare demo --out runs/demo --overwrite

fast: $(READY)  ## Every module in under a minute: the tests that are not slow and need no GPU and no browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not gpu and not browser'

test: check  ## Set up .venv, then lint, types and all tests
	$(BIN)/python -m pytest -n 2

check: $(READY)  ## Lint (ruff), types (mypy strict) and the order of folders (import-linter)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

docs: $(DOCS_READY)  ## Build the documentation into site/; a warning, a dead link or a dead anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

rooms: $(READY)  ## Print the graph of folders in the DOT language, its cycles marked
	$(BIN)/import-linter drawgraph softshare --show-import-totals --show-cycle-breakers

fuzz: $(READY)  ## Read a million mutated files and 2,000 forged runs, half an hour on two cores; FILES=N FOLDERS=N for other numbers
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --files $(FILES) --log benchmarks/fuzz.log
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz_runs.py --folders $(FOLDERS) --log benchmarks/fuzz.log

bench: $(READY)  ## Measure the codec, the prior, training steps and compression without data; rows are appended to benchmarks/results.csv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/bench_codec.py
	$(BIN)/python benchmarks/bench_mixture.py
	$(BIN)/python benchmarks/bench_step.py
	$(BIN)/python benchmarks/bench_datafree.py
	$(BIN)/python benchmarks/bench_datafree.py --weight-error 0.02

reproduce: $(READY)  ## Make what is missing in results/ for the LeNets, by its recipes: hours without a GPU
	$(BIN)/softshare reproduce lenet-300-100
	$(BIN)/softshare reproduce lenet-5-caffe

results: $(READY)  ## Measure every file in results/ anew, then write docs/results.md and its plots
	$(BIN)/softshare verify results
	$(BIN)/softshare results results

clean:  ## Remove the virtual environment and caches; runs/ is kept
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "softshare needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@
