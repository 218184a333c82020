# The verbs of this house. `make help` lists them; each installs what it needs into .venv first.

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n 3 --dist worksteal
# A test stuck in a call of C hears no signal and holds up its worker: this ends it, and names it.
WATCHDOG := -o faulthandler_timeout=660 -o faulthandler_exit_on_timeout=true
PYTHON ?= $(shell command -v python3.11 || command -v python3)

.DEFAULT_GOAL := help
.PHONY: help install system demo test test-all lint format bench docs

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install:  ## make .venv from requirements.lock and build the package into it
	@$(PYTHON) tools/install.py $(VENV)

system:  ## find, install or name what the tests want of the system (Java, kcat, strace, ...)
	@$(PYTHON) tools/system.py

demo: install  ## watch a shop's pipelines survive kill -9, every order counted once
	@$(PYTHON) tools/system.py java
	@$(BIN)/millstream demo

test: install system lint  ## lint and run the tests, without the slow ones
	$(PYTEST) $(WATCHDOG) -m "not slow"

test-all: install system lint  ## all tests, the conformance ones also against Apache Kafka
	$(PYTEST) --peer kafka

lint: install  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

format: install  ## let ruff format and mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: install system  ## Millstream beside Apache Kafka: ratios, a plot, JSON
	$(BIN)/python -m benchmarks

docs: install  ## write the pages that are generated from the code
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python -m millstream.config.reference
	$(BIN)/python -m tools.pictures
