# make demo        the whole loop on this machine: corpus, sweep, release, fit, query, use (about 10 minutes)
# make demo FAST=1 the same, smaller, in about a minute
# make test        the tests; `make test-slow` those that take minutes
# make test-clients  the commands of docs/releasing.md for lm-eval and PEFT, from an environment that has only them
# make resolve     that all extras can be installed together under constraints.txt (nothing is installed)
# make check-all   lint, resolve, test, test-slow, test-clients, demo FAST=1: all that can be checked on one machine
# make report      the report on our own runs again, from their records
# make lint        ruff and mypy
# make bench       the benchmarks, one after the other (under ten minutes), and docs/benchmarks.md from their results;
#                  FAST=1 the smallest sizes, into build/bench. BENCH_CURVES=, BENCH_DATASET=, BENCH_TOKENIZER=: data
#                  that is not shipped here; what needs it is skipped or made without
# PYTHON=… chooses the interpreter (3.10 or newer), PIP_FLAGS=… is passed to pip.

PYTHON ?= python3
VENV ?= .venv
CLIENTS ?= .venv-clients
PIP_FLAGS ?=
BIN := $(VENV)/bin
# A worker for each core, which takes tests over when it has none left; each holds torch, about 1 GB.
PARALLEL := -n logical --maxprocesses 8 --dist worksteal
PIP = -m pip install --disable-pip-version-check $(PIP_FLAGS)

BENCHMARKS := query_speed fit_speed clark_routing model_speed checkpoints data_pipeline hub_releases
BENCH_RESULTS := $(if $(FAST),build/bench,benchmarks/results)
BENCH_PAGE := $(if $(FAST),build/bench/benchmarks.md,docs/benchmarks.md)

.PHONY: setup demo test test-slow test-clients resolve check-all report lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, not " + sys.version.split()[0] + "; set PYTHON=" if sys.version_info < (3, 10) else 0)'
	@echo "Setting up $(VENV) (a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) -qq torch==2.13.0 -e '.[dev]' -c constraints.txt
	@touch $@

# As a user of a release has them: without this project.
$(CLIENTS)/.ready: constraints.txt docs/releasing.md
	@echo "Setting up $(CLIENTS) (a few minutes)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python $(PIP) -qq torch==2.13.0 $$(sed -n 's/^pip install //p' docs/releasing.md | tr -d "'") -c constraints.txt
	@touch $@

demo: setup
	@$(BIN)/python -m training.demo $(if $(FAST),--fast)

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) --durations=15

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) -m slow

test-clients: setup $(CLIENTS)/.ready
	CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -m clients tests/hub/release/test_other_tools.py

# explorer: gradio[mcp] and plotly, for an extra that is planned.
resolve: setup
	@$(BIN)/python $(PIP) -q --dry-run torch==2.13.0 '.[dev,trackers]' 'gradio[mcp]' plotly -c constraints.txt

check-all:
	$(MAKE) lint
	$(MAKE) resolve
	$(MAKE) test
	$(MAKE) test-slow
	$(MAKE) test-clients
	$(MAKE) demo FAST=1

report: setup
	$(BIN)/scaling-law report docs/results --into docs/report.md

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	@for name in $(BENCHMARKS); do \
		echo "== $$name"; \
		$(BIN)/python -m benchmarks.$$name $(if $(FAST),--fast) --json $(BENCH_RESULTS)/$$name.json || exit 1; \
	done
	@$(BIN)/python -m benchmarks.render --results $(BENCH_RESULTS) --page $(BENCH_PAGE)

clean:
	rm -rf $(VENV) $(CLIENTS) demo-output demo-output-fast
