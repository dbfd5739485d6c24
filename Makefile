# Every target sets up what it needs; a second run installs nothing.
#
#   make demo    see the whole thing work            make bench   side by side with Apache Kafka and Spark's connector
#   make test    lint and the fast tests             make soak    the long tests; writes docs/soak.md
#   make lint    ruff, mypy, import contracts, retired words       make dist    a wheel in dist/
#   make setup   only install                        make clean   remove everything that make made

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint ruff mypy names imports words fetched bench soak dist clean system

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Four workers keep two cores busy, because many tests wait for a broker or a client; a file's tests stay on one worker
# and share its brokers, and all that use Spark share one (tests/harness/file_scheduler.py). The last files, tests/wire, have many
# small tests that even the workers out. No test draws random examples here: `make soak` does (tests/harness/searches.py).
SPREAD := --dist loadfile --no-loadscope-reorder
WORKERS ?= 4
ARGS ?=

# The stamps live in the virtual environment, so that they cannot outlive it.
PACKAGES := $(VENV)/.packages-installed
COMPILED := $(VENV)/.modules-compiled

export PYTHON
# Tests, demo and benches start many interpreters: none of them shall compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE
export ALLOW_NO_KAFKA ?=
# Spark's workers otherwise run the first python3 of the PATH, which has none of these packages.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python

help:
	@sed -n 's/^#   //p' Makefile

setup: $(COMPILED)

system:
	@scripts/system-packages.sh

$(PACKAGES): constraints.txt pyproject.toml setup.py | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools wheel Cython
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

# The editable install has compiled them; this compiles them again when a source has changed.
$(COMPILED): $(addprefix src/logmark/wire/,columns.py columns.pxd batch_header.pxd compaction_filter.py compaction_filter.pxd fast_requests.py) src/logmark/spark/source/json_columns.py setup.py $(PACKAGES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

demo: setup
	$(BIN)/python -m examples.clicks.demo $(ARGS)

# The checks of the sources run side by side, and beside what the tests fetch; each prints when it is done.
SIDE_BY_SIDE := --no-print-directory --jobs --output-sync

lint: setup
	@$(MAKE) $(SIDE_BY_SIDE) ruff mypy names imports words

ruff:
	$(BIN)/ruff check .

mypy:
	$(BIN)/mypy --strict

# Names that do not exist and calls that no function takes, in tests, benches, scripts and examples.
names:
	$(BIN)/mypy --config-file tests/mypy.ini

imports:
	$(BIN)/lint-imports --no-logo

# Words that Kafka, Spark and Python have better ones for.
words:
	$(BIN)/python scripts/retired_words.py

fetched:
	@$(BIN)/python scripts/apache_kafka.py
	@$(BIN)/python -m tests.harness.kafka_archive
	@$(BIN)/python -m tests.harness.spark_archive

test: setup
	@$(MAKE) $(SIDE_BY_SIDE) ruff mypy names imports words fetched
	$(PYTEST) -n $(WORKERS) $(SPREAD) -m 'not soak' $(ARGS)

bench: setup
	$(BIN)/python bench/broker.py $(ARGS)
	$(BIN)/python bench/log.py $(ARGS)
	$(BIN)/python bench/lag.py $(ARGS)
	$(BIN)/python bench/spark.py $(ARGS)

soak: setup
	$(BIN)/python scripts/soak.py $(ARGS)

dist: setup
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

clean:
	rm -rf $(VENV) build dist src/*.egg-info $(addprefix src/logmark/,wire/*.so spark/source/*.so wire/columns.c wire/compaction_filter.c wire/fast_requests.c spark/source/json_columns.c) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
