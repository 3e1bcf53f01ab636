# make demo        the whole loop on this machine: corpus, sweep, release, fit, query, use (about 10 minutes)
# make demo FAST=1 the same, smaller, in about a minute
# make test        the tests; `make test-slow` those that take minutes
# make report      the report on our own runs again, from their records
# make lint        ruff and mypy
# make bench       the benchmarks, one after the other (under ten minutes), and docs/benchmarks.md from their results;
#                  FAST=1 the smallest sizes, into build/bench. BENCH_CURVES=, BENCH_DATASET=, BENCH_TOKENIZER=: data
#                  that is not shipped here; what needs it is skipped or made without
# PYTHON=… chooses the interpreter (3.10 or newer), PIP_FLAGS=… is passed to pip.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
BIN := $(VENV)/bin

BENCHMARKS := query_speed fit_speed clark_routing model_speed checkpoints data_pipeline hub_releases
BENCH_RESULTS := $(if $(FAST),build/bench,benchmarks/results)
BENCH_PAGE := $(if $(FAST),build/bench/benchmarks.md,docs/benchmarks.md)

.PHONY: setup demo test test-slow report lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, not " + sys.version.split()[0] + "; set PYTHON=" if sys.version_info < (3, 10) else 0)'
	@echo "Setting up $(VENV) (a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_FLAGS) torch==2.13.0 -e '.[dev]' -c constraints.txt
	@touch $@

demo: setup
	@$(BIN)/python -m training.demo $(if $(FAST),--fast)

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

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
	rm -rf $(VENV) demo-output demo-output-fast
