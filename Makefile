# The two commands for a newcomer are `make demo` and `make test`; both set up .venv by themselves.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KEEP ?= 0
# For two cores: tests with a real Airflow mostly wait, and leave the cores to the others meanwhile.
TEST_WORKERS ?= 4
SOAK_S ?= 1800
# PyPI's PyTorch brings some GB for GPUs; the build for CPUs is on PyTorch's own index.
TORCH_SOURCE ?= --torch-backend cpu

# Containers often forbid Python to keep what it has compiled; here dozens of processes would compile it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-integrations soak lint format bench docs pictures clean

help: ## Show the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Made anew whenever the dependencies change; otherwise it costs nothing.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name it with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "Setting up $(VENV) (first time: about 330 MB of packages)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --constraint constraints.txt --editable '.[celery,postgres,analysis]' --group dev
	@touch $@

demo: $(READY) ## Run real training tasks on simulated GPUs under three policies and compare them (KEEP=1 leaves Airflow up)
	@$(BIN)/python -m demo $(if $(filter-out 0,$(KEEP)),--keep)

test: $(READY) ## Run all tests
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadgroup $(ARGS)

test-integrations: $(READY) ## Add PyTorch (for CPUs), Lightning and Transformers to .venv and test with them
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt $(TORCH_SOURCE) --group integrations
	@$(BIN)/python -m pytest $(or $(ARGS),tests/unit/integrations)

soak: $(READY) ## Train on two machines while their parts are killed in turn, for SOAK_S seconds (1800)
	@EACO_SOAK_S=$(SOAK_S) $(BIN)/python -m pytest -q -s tests/system/machines/test_limits.py tests/system/machines/test_soak.py

lint: $(READY) ## Check style, types and who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## Rewrite the sources in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## Measure what the documentation claims about speed
	@$(BIN)/python -m bench

docs: $(READY) ## Build the documentation site into build/docs, warnings are errors, and check its links and examples
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@$(BIN)/python -m pytest -q tests/unit/test_documents.py -k "not builds"
	@echo "The site is at build/docs/index.html"

pictures: $(READY) ## Take the pictures of the getting-started page anew, from a real Airflow (needs chromium)
	@$(BIN)/python -m demo.pictures

clean: ## Remove everything that was made here, the environment included
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
