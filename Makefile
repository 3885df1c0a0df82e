# Two commands matter: `make demo` and `make test`. Both build .venv first and are quick when it is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.privmarket-installed
DEMO_STAMP := $(VENV)/.privmarket-demo
export OMP_NUM_THREADS ?= 1
# Where a machine forbids it, every process of the tests would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test suite setup lint docs dist clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up and run the main job (about a minute after set-up)"
	@echo "make test    set up, run every test and the checks of make lint"
	@echo "make setup   only build $(VENV)"
	@echo "make docs    the documentation as a site, in out/site"
	@echo "make lint    ruff, mypy and the import contract"
	@echo "make dist    build wheel and source archive, try them outside the checkout"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "privmarket needs Python 3.11 or newer; $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Could not create $(VENV). On Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip

$(STAMP): pyproject.toml studies/pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable ./studies
	@touch $@

$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[federated]"
	@touch $@

setup: $(STAMP)

# The demo needs a tenth of what the tests need; where everything is set up already, that will do.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/privmarket demo

lint: $(STAMP)
	$(BIN)/ruff check src studies tests
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open out/site/index.html; the search needs a server: $(BIN)/python -m http.server --directory out/site"

# Both at once: mypy alone would leave a core idle for a minute the first time.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 lint suite

# On two cores a third worker costs more, by what it imports, than it computes while others wait for servers.
WORKERS ?= 2
suite: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Wheel and source archive, installed and used in a fresh environment outside the checkout. Needs a package index.
# PYTHONS="python3.11 python3.12" tries other interpreters; the last line runs every page's commands from the wheel.
PYTHONS ?= $(BIN)/python
dist: $(STAMP)
	$(BIN)/python -m privmarket_studies.smoke . --dist dist $(foreach python,$(PYTHONS),--python $(python))
	$(BIN)/python -m privmarket_studies.smoke . --extra all --pages slow

clean:
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
