# make demo          the whole loop on this machine: corpus, sweep, release, fit, ask, use (about 7 minutes)
# make demo FAST=1   the same, smaller, in about two minutes; SEED=1: with another seed, into demo-output-seed1
# make test          the tests; `make test-slow` those that take minutes, and properties on more examples
# make test-kernels  the tests on the kernels of other processors (OpenBLAS, NumPy), each in a process of its own;
#                    FAST=1: golden answers, guides, fits and a study on one of them. Skipped on other than x86-64
# make test-light    the law, its figures and the Hub's commands where only `pip install .` was done: no torch
# make test-clients  the commands of docs/releasing.md for lm-eval and PEFT, from an environment that has only them, and
#                    docs/training.md's callback in TRL
# make test-vllm     docs/serving.md: vLLM on a CPU beside transformers; skipped where vLLM cannot be installed
# make test-transformers  transformers' own common tests on our model, from the source package of the installed version;
#                    skipped offline. TRANSFORMERS=folder: from a checkout of its tag, which has those of generation, too
# make test-browser  the explorer and the site in a headless Chromium (on PATH, or CHROMIUM=); axe-core comes by npm
# make test-slurm    sweeps on a SLURM of two nodes on this machine, from the packages slurm-wlm and munge; as root
#                    FAST=1: the smallest form of either, as CI runs it
# make lint          ruff, mypy, the order of the packages and their rooms (import-linter), and ceilings of density
#                    and wording (.ci/style.py)
# make resolve       check that all extras install together under constraints.txt (nothing is installed)
# make dist          the wheel and the sdist in dist/, checked and tried in a fresh environment
# make check-all     all of these, with demo FAST=1
# make studies       every page of docs/studies again, from its records; make crossing, demo_runs, evidence, granularity,
#                    anatomy, hours, learning_rates, live, models or promote: one. RUNS="folder …": first collects the records of runs;
#                    DATA=folder: first derives points, rates and what the library takes from them from public tables;
#                    PREDICT="d_model:E …": first writes down, once, what is expected of models not trained yet
# make explorer-picture  docs/figures/explorer.png again, by the browser of make test-browser
# make tour          the pictures of docs/tour.md again, by its own code
# make reference     docs/reference/options.md again, from the options of the commands
# make docs          the documentation as a site in build/site, strict about its links and anchors
# make bench         the benchmarks, one after the other (under ten minutes), and docs/benchmarks.md from their results;
#                    FAST=1 the smallest sizes, into build/bench. BENCH_CURVES=, BENCH_SCALEBENCH=, BENCH_STEP_LAW=,
#                    BENCH_DATASET=, BENCH_TOKENIZER=, BENCH_RUNS=: data that is not shipped here; what needs it is skipped or made without
# make gpu           what only a GPU can show, into docs/benchmarks.md; make gpu-first: what answers most, in 20 minutes;
#                    gpu-steps, gpu-run, gpu-suite, gpu-heads, gpu-data, gpu-decoding, gpu-checkpoints, gpu-sweep,
#                    gpu-registered (45 minutes, with DATA=): one part. LIMIT=540 stops after so many seconds, and the
#                    same command goes on; RETRY=1 runs again what failed; DATA=folder: text of the sweep; RESULTS=folder
#                    keeps the results; GPU_PYTHON: an interpreter that has torch with CUDA (default: the one of make setup).
#                    make gpu-smoke: tiny, on a CPU, too
#
# PYTHON=… chooses the interpreter (3.10 or newer). PIP_FLAGS=… goes to every install, for example
# PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu". Installs with uv where there is one, else with pip.

PYTHON ?= python3
VENV ?= .venv
LIGHT ?= .venv-light
CLIENTS ?= .venv-clients
VLLM ?= .venv-vllm
FRESH ?= .venv-dist
TRANSFORMERS ?= build/transformers
PIP_FLAGS ?=
UV ?= $(shell command -v uv 2>/dev/null)
BIN := $(VENV)/bin
# A worker for each core, which takes tests over when it has none left; each holds torch, about 1 GB.
PARALLEL := -n logical --maxprocesses 8 --dist worksteal
# As pip does: the newest version that constraints.txt allows, from whichever index has it.
export UV_INDEX_STRATEGY ?= unsafe-best-match
# As pip does, too: packages are compiled once, and not by each of the many processes that tests start; our own modules
# by the first of them.
export UV_COMPILE_BYTECODE ?= 1
unexport PYTHONDONTWRITEBYTECODE

# $(call venv,FOLDER) makes an empty environment; $(call install,FOLDER) and $(call uninstall,FOLDER) start the commands
# that install into it and remove from it.
# -I: pip must not take this folder's *.egg-info for an installed package.
NEWER := import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; set PYTHON=")
ifeq ($(UV),)
venv = $(PYTHON) -c '$(NEWER)' && $(PYTHON) -m venv $(1)
pip = $(PYTHON) -I -m pip
install = $(1)/bin/python -I -m pip install --disable-pip-version-check $(PIP_FLAGS)
uninstall = $(1)/bin/python -I -m pip uninstall --disable-pip-version-check --yes
else
venv = $(PYTHON) -c '$(NEWER)' && $(UV) venv --quiet --allow-existing --python $(PYTHON) $(1)
pip = $(UV) tool run --quiet pip
install = $(UV) pip install --python $(1)/bin/python $(PIP_FLAGS)
uninstall = $(UV) pip uninstall --python $(1)/bin/python
endif

# $(call logged,LOG,COMMAND): what an installer says goes to a file, to whose end an error points.
logged = mkdir -p build; $(2) > build/$(1).log 2>&1 || { tail -n 4 build/$(1).log; echo "error: see build/$(1).log"; exit 1; } >&2

BENCHMARKS := query_speed fit_speed large_tables clark_routing next_runs model_speed classes muon throughput hours checkpoints data_pipeline tokenising hub_releases
BENCH_RESULTS := $(if $(FAST),build/bench,benchmarks/results)
BENCH_PAGE := $(if $(FAST),build/bench/benchmarks.md,docs/benchmarks.md)

.PHONY: setup demo test test-kernels test-slow test-light test-clients test-vllm test-transformers test-browser test-slurm lint resolve dist check-all
.PHONY: models studies anatomy evidence crossing demo_runs diagnose granularity hours learning_rates live promote explorer-picture tour reference docs bench clean
.PHONY: gpu gpu-smoke gpu-first gpu-steps gpu-run gpu-suite gpu-heads gpu-data gpu-decoding gpu-checkpoints gpu-registered gpu-sweep

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) with $(if $(UV),uv,pip): torch and the other packages, a minute or two"
	@$(call venv,$(VENV))
	@echo "Installing; what is done meanwhile is in build/setup.log"
	@$(call logged,setup,$(call install,$(VENV)) torch==2.13.0 -e '.[dev]' -c constraints.txt)
	@touch $@
	@echo "Ready. Go on with: make demo, make test, or source $(VENV)/bin/activate"

# What `pip install .` brings, and what builds and tests it.
$(LIGHT)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(LIGHT): what pip install . brings, half a minute"
	@$(call venv,$(LIGHT))
	@$(call logged,setup-light,$(call install,$(LIGHT)) -e . build hypothesis pytest pytest-timeout -c constraints.txt)
	@touch $@

# As a user of a release has them: without this project.
$(CLIENTS)/.ready: constraints.txt docs/releasing.md
	@echo "Setting up $(CLIENTS): torch, lm-eval, PEFT and TRL, a few minutes"
	@$(call venv,$(CLIENTS))
	@$(call logged,setup-clients,$(call install,$(CLIENTS)) torch==2.13.0 trl \
		$$(sed -n 's/^pip install //p' docs/releasing.md | tr -d "'") -c constraints.txt)
	@touch $@

# As one who serves a release has them: without this project, and without its constraints, which ask for a newer
# transformers than vLLM takes.
$(VLLM)/.ready: docs/serving.md
	@echo "Setting up $(VLLM): vLLM for CPUs (3.5 GB), a few minutes"
	@$(call venv,$(VLLM))
	$(call install,$(VLLM)) $$(sed -n 's/^pip install //p' docs/serving.md)
	$(call uninstall,$(VLLM)) $$(sed -n 's/^pip uninstall --yes //p' docs/serving.md)
	@touch $@

demo: setup
	@$(BIN)/python -m training.demo $(if $(FAST),--fast) $(if $(SEED),--seed $(SEED))

# An environment that forbids caches of bytecode would have every process of the tests compile what it imports. What
# test_light.py asks here, too, `make test-light` asks where it matters.
test: setup
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.core_seconds 480 $(PARALLEL) --durations=15 --ignore tests/test_light.py

test-kernels: setup
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.kernels $(if $(FAST),--fast) $(PARALLEL)

test-slow: setup
	OMP_NUM_THREADS=1 MANY_EXAMPLES=1 $(BIN)/python -m pytest $(PARALLEL) -m '(slow or hypothesis) and not slurm'

test-light: $(LIGHT)/.ready
	$(LIGHT)/bin/python -m pytest -m light tests/test_light.py

test-clients: setup $(CLIENTS)/.ready
	CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -m clients tests/hub/release/test_other_tools.py tests/training/test_trl.py

test-vllm: setup
	-$(MAKE) $(VLLM)/.ready
	VLLM=$(VLLM) $(BIN)/python -m pytest -m vllm tests/hub/release/test_vllm.py

# The tests of the installed version, from its source package. They name modules `tests.…`, so they run in its folder, and
# without the conftest, markers and options of ours.
build/transformers/%/.ready: | setup
	@rm -rf $(@D) && mkdir -p $(@D)
	$(pip) download --quiet --no-deps --no-binary :all: --dest $(@D) $(PIP_FLAGS) transformers==$*
	tar -xzf $(@D)/transformers-$*.tar.gz -C $(@D) --strip-components=1 transformers-$*/tests
	@touch $@

test-transformers: setup
ifeq ($(TRANSFORMERS),build/transformers)
	@version=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("transformers"))'); \
	folder=build/transformers/$$version; \
	if $(MAKE) $$folder/.ready > build/transformers.log 2>&1; then $(MAKE) test-transformers TRANSFORMERS=$$folder; \
	else echo "SKIPPED: the source package of transformers $$version cannot be downloaded: build/transformers.log"; fi
else
	cd $(TRANSFORMERS) && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m pytest --noconftest -W ignore \
		-o addopts="-ra --timeout=1200" $(CURDIR)/tests/transformers_common/common_tests.py
endif

# The release of axe-core whose rules the page is held to; without npm its test is skipped.
AXE := build/axe/package/axe.min.js

$(AXE):
	@mkdir -p build/axe
	-cd build/axe && npm pack --silent axe-core@4.14.1 && tar -xzf axe-core-4.14.1.tgz

test-browser: setup $(AXE)
	AXE=$(AXE) BURSTS=$(if $(FAST),4,50) $(BIN)/python -m pytest -m browser tests/scaling_law/explorer tests/test_site.py

test-slurm: setup
	$(BIN)/python -m pytest -m 'slurm$(if $(FAST), and not slow)' tests/slurm

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/style.py

resolve: setup
	@$(call install,$(VENV)) --quiet --dry-run torch==2.13.0 '.[dev]' -c constraints.txt

dist: $(LIGHT)/.ready
	rm -rf dist $(FRESH)
	$(LIGHT)/bin/python -m build .
	@$(call venv,$(FRESH))
	$(call install,$(FRESH)) dist/*.whl -c constraints.txt
	FRESH=$(FRESH) $(LIGHT)/bin/python -m pytest -m dist tests/test_dist.py

check-all:
	$(MAKE) lint
	$(MAKE) resolve
	$(MAKE) test-light
	$(MAKE) test
	$(MAKE) test-kernels
	$(MAKE) test-slow
	$(MAKE) test-clients
	$(MAKE) test-vllm
	$(MAKE) test-transformers
	$(MAKE) studies
	git diff --exit-code -- docs/studies studies 'scaling_law/*.json'
	$(MAKE) docs
	$(MAKE) test-browser
	$(MAKE) test-slurm
	$(MAKE) dist
	$(MAKE) demo FAST=1

studies: models granularity evidence anatomy crossing hours diagnose learning_rates live promote demo_runs

models granularity evidence anatomy crossing hours diagnose learning_rates live promote demo_runs: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m studies $@ $(if $(RUNS)$(DATA),--runs $(RUNS) $(DATA)) $(if $(PREDICT),--predict $(PREDICT))

explorer-picture: setup
	$(BIN)/python -m tests.scaling_law.explorer.picture docs/figures/explorer.png

tour: setup
	cd docs/figures && PYTHONPATH=$(CURDIR) $(abspath $(BIN))/python -m tests.guides $(CURDIR)/docs/tour.md

reference: setup
	$(BIN)/python -m tests.option_reference

docs: setup
	$(BIN)/python -m pytest -m slow tests/test_site.py
	@echo build/site/index.html

bench: setup
	@for name in $(BENCHMARKS); do \
		echo "== $$name"; \
		$(BIN)/python -m benchmarks.$$name $(if $(FAST),--fast) --json $(BENCH_RESULTS)/$$name.json || exit 1; \
	done
	@$(BIN)/python -m benchmarks.render --results $(BENCH_RESULTS) --page $(BENCH_PAGE)

GPU_PYTHON ?= $(BIN)/python
GPU_PARTS := steps run suite heads data decoding checkpoints registered sweep
GPU_FLAGS := $(if $(LIMIT),--limit $(LIMIT)) $(if $(RETRY),--retry) $(if $(DATA),--data $(DATA))
GPU_FLAGS += $(if $(RESULTS),--results $(RESULTS))

gpu gpu-first $(GPU_PARTS:%=gpu-%): $(if $(filter $(BIN)/python,$(GPU_PYTHON)),setup)
	$(GPU_PYTHON) -m benchmarks.gpu $(patsubst gpu-%,%,$(filter gpu-%,$@)) $(GPU_FLAGS)

gpu-smoke: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),setup)
	rm -rf build/gpu-smoke
	OMP_NUM_THREADS=1 $(GPU_PYTHON) -m benchmarks.gpu --smoke --limit 600

clean:
	rm -rf $(VENV) $(LIGHT) $(CLIENTS) $(VLLM) $(FRESH) dist demo-output*
