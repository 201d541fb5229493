# Start with `make demo` and `make test`. Stamp files inside .venv keep a second call from installing everything again; they
# become stale when the requirement files change.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
WORKERS ?= 2
SEED ?= 0
RUN ?= runs/demo-seed$(SEED)
PACKAGES := scope_jax rollouts models retrieval sharding tools

.PHONY: demo test lint format slow docs install dev clean help
.DELETE_ON_ERROR:

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | sort | expand -t 10

demo: $(VENV)/.installed  ## train Search Self-play on Atlas and print held-out accuracy before and after
	$(BIN)/scope-jax demo --seed $(SEED) --run "$(RUN)"

# All tests of a file run in one worker, so that shared fixtures are built once.
test: lint docs  ## run lint, build the docs, run every test that takes seconds
	$(BIN)/python -m pytest -q -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

slow: $(VENV)/.dev  ## run the tests that take minutes; PART=3/8 runs the third of eight parts
	$(BIN)/python -m pytest -q -m slow -n $(WORKERS) --dist loadfile $(if $(PART),--part $(PART))

lint: $(VENV)/.dev  ## check style, import rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
# import-linter does not follow links, so it reads a copy.
	rm -rf build/lint && mkdir -p build/lint && cp -rL scope_jax tools build/lint
	PYTHONPATH=build/lint $(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev  ## reformat the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## build the documentation as a site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

install: $(VENV)/.installed  ## create the environment without the development tools

dev: $(VENV)/.dev  ## create the environment with the development tools

clean:  ## remove the environment and all caches; keep runs
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find $(PACKAGES) tests benchmarks launch -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("scope-jax needs Python 3.11, 3.12 or 3.13, but this is %d.%d; run make PYTHON=/path/to/python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	touch $@

# --no-deps: the file is complete, and JetStream's dependencies would pull in TensorFlow.
$(VENV)/.installed: requirements.txt pyproject.toml | $(VENV)/.created
	$(PIP) install --quiet --no-deps -r requirements.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.installed
	$(PIP) install --quiet --no-deps -r requirements-dev.txt
	$(PIP) install --quiet -c constraints.txt torch==2.13.0
	touch $@
