# Two commands on a bare machine with Python 3.11 or newer: `make audit` and `make test`.
# Each sets up .venv first. On Windows without make: see "Without make" in README.md.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.attnaudit-installed

.PHONY: audit test validate lint clean

# Ends with pytest's own status: 1 means that a gate failed, which the demo model honestly may.
audit: $(STAMP)
	$(BIN)/python -m pytest audits/ --model demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not gpu" $(ARGS)

# Tries the checks and the default policy on planted models; ARGS=--quick takes minutes.
validate: $(STAMP)
	$(BIN)/python -m attnaudit.cli validate $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@
