# What a checkout can do; `make` alone lists it. Every target that needs the environment makes it first.
#
#   make test ARGS="-k gat"            pass something on (also to demo)
#   make test WORKERS=8                more test processes than two
#   make setup PYTHON=python3.13       another interpreter, the first time .venv is made

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two test processes where there are two cores, each with torch on one thread.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
WORKERS ?= $(if $(filter 1,$(CORES)),0,2)

PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

.DEFAULT_GOAL := help
.PHONY: setup demo test test-distributed test-browser docs bench check format clean help

setup: $(READY)  ## make .venv and install deepgat with its tools in it (quick when it is there already)
	@$(BIN)/python -c 'import importlib.metadata as m, platform as p; print("Ready: $(VENV), Python", p.python_version(), "with torch", m.version("torch"))'

# The stamp is touched last, so an interrupted set-up is never taken for a finished one. An existing
# environment that works is brought up to date; a broken or too old one is made anew. The build
# environment holds setuptools alone (pyproject.toml), so building the package never fetches torch.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/deepgat/ops/cpu/*.cpp src/deepgat/ops/cpu/*.h)
	@rm -f $@
	@if ! { $(BIN)/python $(NEW_ENOUGH) && $(BIN)/python -m pip --version; } >/dev/null 2>&1; then \
	    $(PYTHON) $(NEW_ENOUGH) >/dev/null 2>&1 || { \
	        echo "deepgat needs Python 3.11 or newer and '$(PYTHON)' is not one: name one that is, for example: make setup PYTHON=python3.12" >&2; \
	        exit 1; }; \
	    echo "Making $(VENV) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "Installing torch (the first time takes a minute or two)"
	@$(PIP_INSTALL) torch
	@echo "Installing deepgat and its development tools"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@

demo: $(READY)  ## run the demo
	$(BIN)/deepgat demo $(ARGS)

test: $(READY)  ## run the tests; what is skipped is printed with its reason
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-distributed: $(READY)  ## the tests that start many processes, and kill some; ten minutes or so
	DEEPGAT_DISTRIBUTED=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/distributed tests/experiments/test_cluster.py tests/test_progress.py $(ARGS)

test-browser: $(READY)  ## open the report's page in a headless Chromium; screenshots in build/screenshots
	@browser="$$(.ci/find-browser)" && echo "browser: $$browser" && \
	DEEPGAT_BROWSER="$$browser" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser $(ARGS)

docs: $(READY)  ## build the documentation into site/; every link and name in it is checked
	@$(PIP_INSTALL) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY)  ## measure speed and memory against PyG and the plain form
	$(BIN)/deepgat bench --out benchmarks/results/$$(uname -n | cut -d. -f1).json $(ARGS)

check: $(READY)  ## lint, formatting, types, and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## rewrite the code in the project's format, with the lint fixes that are safe
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what builds, checks and the demo left behind; .venv stays and is refreshed next time
	rm -rf build dist site demo-output .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +
	rm -f $(READY)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
