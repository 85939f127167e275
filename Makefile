PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
TOOLS_READY := $(VENV)/.tools-ready
FILES ?= 1000000
# Wheels alone, and only those whose hash a lock names: no code of a package runs while it is installed.
LOCKED := $(VENV)/bin/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps
FOLDERS ?= 2000

.DEFAULT_GOAL := help
.PHONY: help install demo fast test check docs rooms fuzz bench reproduce results lock audit dist clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

install: $(READY)  ## Set up .venv, with every version and hash that locks/ names

demo: $(DEMO_READY)  ## Set up .venv with what a run needs, and run the whole route on LeNet-300-100 and MNIST; the run is left in runs/demo
	$(BIN)/softshare demo --out runs/demo --overwrite

fast: $(READY)  ## Every module in under a minute: the tests that are not slow and need no GPU and no browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not gpu and not browser'

test: check  ## Set up .venv, then lint, types and all tests
	$(BIN)/python -m pytest -n 2 --timeout 600

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
	$(BIN)/python benchmarks/bench_codec.py
	$(BIN)/python benchmarks/bench_mixture.py
	$(BIN)/python benchmarks/bench_step.py
	$(BIN)/python benchmarks/bench_datafree.py
	$(BIN)/python benchmarks/bench_datafree.py --weight-error 0.02

reproduce: $(READY)  ## Make what is missing in results/ for the LeNets, by its recipes: hours without a GPU
	$(BIN)/softshare reproduce lenet-300-100
	$(BIN)/softshare reproduce lenet-5-caffe

results: $(READY)  ## Measure every file in results/ again, then write docs/results.md and its plots
	$(BIN)/softshare verify results
	$(BIN)/softshare results results

lock: $(TOOLS_READY)  ## Write locks/ from pyproject.toml; with UPGRADE=--upgrade, to the newest versions
	$(COMPILE) pyproject.toml --extra dev --extra bench --group build --output-file locks/dev.txt
	$(COMPILE) --no-emit-package triton pyproject.toml --constraint locks/dev.txt --output-file locks/run.txt
	$(COMPILE) --no-emit-package triton pyproject.toml --constraint locks/dev.txt --extra report --group build --output-file locks/demo.txt
	$(COMPILE) pyproject.toml --constraint locks/dev.txt --extra docs --output-file locks/docs.txt
	$(COMPILE) --constraint locks/dev.txt --group tools --output-file locks/tools.txt
	echo uv | $(COMPILE) --constraint locks/tools.txt - --output-file locks/uv.txt

audit: $(TOOLS_READY)  ## Look up every locked version in the database of known vulnerabilities
	$(BIN)/python .ci/audit.py locks/*.txt

dist: $(TOOLS_READY)  ## Build the wheel and the sdist into dist/, with a bill of materials of what the wheel needs (CycloneDX)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	cat locks/run.txt locks/torch.txt | $(BIN)/python -W ignore -m cyclonedx_py requirements - --pyproject pyproject.toml \
		--output-reproducible | $(BIN)/python .ci/bom.py dist

clean:  ## Remove the virtual environment and caches; runs/ is kept
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(DEMO_READY): pyproject.toml locks/demo.txt locks/torch.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and "softshare needs Python 3.11.5 or newer to develop: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) --requirement locks/demo.txt
	$(BIN)/python -m pip install --quiet --requirement locks/torch.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(READY): $(DEMO_READY) locks/dev.txt
	$(LOCKED) --requirement locks/dev.txt
	touch $@

$(DOCS_READY): $(READY) locks/docs.txt
	$(LOCKED) --requirement locks/docs.txt
	touch $@

$(TOOLS_READY): $(READY) locks/tools.txt
	$(LOCKED) --requirement locks/tools.txt
	touch $@

# torch comes by its own pin, and a build of it for CUDA brings these, which nothing else needs; nor triton, but for tests.
CUDA := cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 \
	cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' --constraint locks/torch.txt $(UPGRADE) \
	$(addprefix --no-emit-package ,torch softshare $(CUDA))
