# `make` alone lists the targets. Every target that needs the environment creates it first.
#
#   make test ARGS="-k gat"            pass options on (also to demo and bench)
#   make test WORKERS=8                use more than two test processes
#   make fuzz FUZZ_SECONDS=60          a shorter search for files that break a reader
#   make setup PYTHON=python3.13       choose the interpreter when .venv is first created

PYTHON ?= python3
ARGS ?=
ROUNDS ?= 200
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two test processes on two cores or more, each with torch on one thread.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
FUZZ_SECONDS ?= 600
WORKERS ?= $(if $(filter 1,$(CORES)),0,2)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
IN_PARALLEL = -n $(WORKERS) --dist worksteal

# Python compiles what it imports by itself, which is a small part of what is installed, and keeps it
# in __pycache__. Otherwise each test process would compile hundreds of modules anew.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

.DEFAULT_GOAL := help
.PHONY: setup demo test test-all test-rest test-slow test-distributed test-browser sanitize soak fuzz docs bench check format clean help

setup: $(READY)  ## create .venv and install deepgat with its development tools
	@$(BIN)/python -c 'import importlib.metadata as m, platform as p; print("Ready: $(VENV), Python", p.python_version(), "with torch", m.version("torch"))'

# The stamp is touched last, so an interrupted set-up never counts as finished. A working environment
# is updated; a broken or outdated one is created again. The build environment holds setuptools alone
# (pyproject.toml), so the package is built while pip fetches torch. The last step finds it installed.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/deepgat/ops/cpu/*.cpp src/deepgat/ops/cpu/*.h)
	@rm -f $@
	@if ! { $(BIN)/python $(NEW_ENOUGH) && $(BIN)/python -m pip --version; } >/dev/null 2>&1; then \
	    $(PYTHON) $(NEW_ENOUGH) >/dev/null 2>&1 || { \
	        echo "deepgat needs Python 3.11 or newer, which '$(PYTHON)' is not: choose another, for example: make setup PYTHON=python3.12" >&2; \
	        exit 1; }; \
	    echo "Creating $(VENV) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "Installing torch and compiling the kernels (the first time takes a minute or two)"
	@$(PIP_INSTALL) torch & torch=$$!; \
	$(PIP_INSTALL) --no-deps -e . || { kill $$torch; exit 1; }; \
	wait $$torch
	@echo "Installing what deepgat needs and its development tools"
	@$(PIP_INSTALL) 'deepgat[dev]'
	@touch $@

demo: $(READY)  ## run the demo
	$(BIN)/deepgat demo $(ARGS)

test: $(READY)  ## run the fast tests; skipped tests are listed with the reason
	$(PYTEST) $(IN_PARALLEL) $(ARGS)

test-all: test test-rest test-browser  ## run every test

test-rest: $(READY)  ## run the slow and the distributed tests together, which fills both cores
	DEEPGAT_SLOW=1 DEEPGAT_DISTRIBUTED=1 $(PYTEST) $(IN_PARALLEL) -m "slow or distributed" --durations=20 $(ARGS)

test-slow: $(READY)  ## run the tests that `make test` skips because they are slow
	DEEPGAT_SLOW=1 $(PYTEST) $(IN_PARALLEL) -m "slow and not distributed" --durations=20 $(ARGS)

test-distributed: $(READY)  ## run the tests that start many processes and kill some
	DEEPGAT_SLOW=1 DEEPGAT_DISTRIBUTED=1 $(PYTEST) $(IN_PARALLEL) -m distributed $(ARGS)

test-browser: $(READY)  ## open the HTML pages in a headless Chromium; screenshots in build/screenshots
	@browser="$$(.ci/find-browser)" && echo "browser: $$browser" && \
	DEEPGAT_BROWSER="$$browser" $(PYTEST) -n $(WORKERS) --dist loadfile -m browser tests/browser $(ARGS)

sanitize: $(READY)  ## run the tests of the C++ kernels under AddressSanitizer and UBSan
	$(BIN)/python tests/sanitize.py $(ARGS)

soak: $(READY)  ## kill and resume training at random instants, ROUNDS=200 times
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py $(ROUNDS)

fuzz: $(READY)  ## spoil files for FUZZ_SECONDS (600) in search of one that breaks a reader
	DEEPGAT_FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) $(IN_PARALLEL) -m fuzz tests/fuzz $(ARGS)

docs: $(READY)  ## build the documentation into site/ and check its links and names
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY)  ## measure speed and memory against PyG and plain torch
	$(BIN)/deepgat bench --out benchmarks/results/$$(uname -n | cut -d. -f1).json $(ARGS)

check: $(READY)  ## check lint, formatting, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the output of builds, checks and the demo; keep .venv and refresh it next time
	rm -rf build dist site demo-output .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +
	rm -f $(READY)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
