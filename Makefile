# `make help` lists the targets; each installs what it needs into .venv first.

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n 4 --dist worksteal
# A test stuck in C code gets no signal and blocks its worker: this kills it and prints its name.
WATCHDOG := -o faulthandler_timeout=660 -o faulthandler_exit_on_timeout=true
PYTHON ?= $(shell command -v python3.11 || command -v python3)

.DEFAULT_GOAL := help
.PHONY: help install system prepare demo test test-all quick-tests all-tests collect lint format bench docs site release

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install:  ## create .venv from requirements.lock and install the package
	@$(PYTHON) tools/install.py $(VENV)

system:  ## check for, or install, system packages for the tests (Java, kcat, strace, ...)
	@$(PYTHON) tools/system.py

demo: install  ## run the demo: pipelines survive kill -9, every order counts once
	@$(PYTHON) tools/system.py java
	@$(BIN)/millstream prepare
	@$(BIN)/millstream demo

prepare: install system  ## archive the classes that Spark loads, so that it starts faster
	@-$(BIN)/millstream prepare

# Linting takes minutes in a fresh clone, so it runs beside the tests. If either fails, make waits for
# the other, and its last lines name what failed.
test:  ## lint and run the tests, without the slow ones
	@$(MAKE) --no-print-directory --jobs 2 lint quick-tests

test-all:  ## run all tests, the conformance ones also against Apache Kafka
	@$(MAKE) --no-print-directory --jobs 2 lint all-tests

quick-tests: install system prepare collect
	$(PYTEST) $(WATCHDOG) -m "not slow"

all-tests: install system prepare collect
	$(PYTEST) --peer kafka --hypothesis-profile exploring

# Rewriting the assertions of all tests takes pytest half a minute: once, and not once per process.
collect: export PYTHONDONTWRITEBYTECODE =
collect: install
	@-$(BIN)/pytest --collect-only --quiet -n 0 > /dev/null

lint: install  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

format: install  ## format and fix with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: install system  ## benchmark against Apache Kafka: ratios, a plot, JSON
	$(BIN)/python -m benchmarks

docs: install  ## write the pages that are generated from the code
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python -m millstream.config.reference
	$(BIN)/python -m tools.pictures

release: install  ## build sdist and wheels in dist, check them, install them; VERSION=1.0.0 sets the version
	$(BIN)/python -m tools.release $(if $(VERSION),--version $(VERSION))

site: install  ## build the documentation site in build/site, to be read without a server
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"
