# Two commands matter: `make demo` and `make test`. Both build .venv first and are quick when it is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.privmarket-installed
export OMP_NUM_THREADS ?= 1

.PHONY: demo test setup lint check-types clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up and run the main job (about a minute after set-up)"
	@echo "make test    set up and run every test"
	@echo "make setup   only build $(VENV)"
	@echo "make lint    ruff, mypy and the import contract"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "privmarket needs Python 3.11 or newer; $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not create $(VENV). On Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/privmarket demo

lint: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
