# Needs Python (3.11 or newer) and make, nothing else. Variables, all optional:
#   ARGS=--quick           further arguments, to `sinkscope demo`, pytest or the benchmarks
#   WORKERS=2              processes that run the tests
#   MODEL                  of results-real: a hub id, a folder or a GGUF file
#   PYTHON, TORCH          see .ci/install
WORKERS ?= 2
MODEL ?= HuggingFaceTB/SmolLM2-135M-Instruct
export PYTHON TORCH

venv := .venv/bin
oldest := .venv-oldest/bin
inputs := pyproject.toml $(wildcard replication/pyproject.toml) .ci/install
fast := -m pytest -m "not slow" -n $(WORKERS) --dist worksteal
types := $(venv)/mypy sinkscope tools $(wildcard replication/sinkscope_replication)
pages := $(venv)/python -m tools.pages
style := $(venv)/ruff check . && $(venv)/ruff format --check .

.NOTPARALLEL:
.PHONY: help demo test test-slow test-release mutants test-oldest lint pages atlas results-real docs kernels bench clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: .venv/run.stamp ## check a pretrained model, train two small ones, one page: five minutes
	$(venv)/sinkscope demo $(ARGS)

test: .venv/dev.stamp ## lint, type-check and run the fast tests
	$(style)
	$(types) & types=$$!; \
	$(venv)/python $(fast) $(ARGS); tests=$$?; \
	wait $$types || { echo "mypy found what stands above, among the lines of the tests" >&2; exit 1; }; \
	exit $$tests

test-slow: .venv/dev.stamp ## the slow tests, without shape checks; SmolLM2-135M is fetched once (640 MB as it is kept)
	SINKSCOPE_NO_SHAPE_CHECKS=1 $(venv)/python -m pytest -m "slow and not release" -n $(WORKERS) --dist worksteal $(ARGS)

test-release: .venv/release.stamp ## jobs of minutes before a release: every model type, tutorials, kills, clusters, installations
	SINKSCOPE_NO_SHAPE_CHECKS=1 $(venv)/python -m pytest -m release -n $(WORKERS) --dist worksteal $(ARGS)

mutants: .venv/release.stamp ## which small changes of FILE do the fast tests in TESTS not notice?
	$(venv)/python -m tools.mutants $(FILE) $(TESTS)

test-oldest: .venv-oldest/dev.stamp ## the fast tests with the oldest supported torch and transformers
	$(oldest)/python $(fast) $(ARGS)

lint: .venv/dev.stamp ## style, types, and the tables in pages
	$(style)
	$(types)
	$(pages) --check

pages: .venv/dev.stamp ## fill the tables in pages from results and from code
	$(pages)

atlas: pages ## the atlas's table from results/models, in docs/atlas.md

results-real: .venv/run.stamp ## what the trials say of SmolLM2, about nine and a half hours by its plan: results/real/trials (ARGS=--plan: the table)
	$(venv)/python -m tools.results_real $(MODEL) $(ARGS)

# It runs tiny models, which two threads make several times slower where a core is busy.
docs: .venv/docs.stamp ## the documentation site, in build/site: offline, warnings are errors, links are checked
	OMP_NUM_THREADS=1 $(venv)/python -m tools.site

kernels: .venv/run.stamp ## compare every fused kernel with the exact formulas, on a CUDA GPU
	$(venv)/python -m tools.kernels $(ARGS)

bench: .venv/run.stamp ## print what the scripts in benchmarks/ time and weigh
	set -e; for script in $$(grep -l __main__ benchmarks/*.py); do \
		$(venv)/python -m benchmarks.$$(basename $$script .py) $(ARGS); \
	done

clean: ## remove the environments, builds and caches; runs/ stays
	rm -rf .venv .venv-oldest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find sinkscope tests tools benchmarks replication -name __pycache__ -prune -exec rm -rf {} +

# A stamp stands for a finished installation, so it is written last.
.venv/run.stamp: $(inputs) constraints.txt
	.ci/install .venv constraints.txt gguf
	touch $@

.venv/dev.stamp: $(inputs) constraints.txt
	.ci/install .venv constraints.txt dev
	touch .venv/run.stamp $@

.venv/release.stamp: $(inputs) constraints.txt
	.ci/install .venv constraints.txt dev,release
	touch .venv/run.stamp .venv/dev.stamp $@

.venv/docs.stamp: $(inputs) constraints.txt
	.ci/install .venv constraints.txt dev,docs
	touch .venv/run.stamp .venv/dev.stamp $@

.venv-oldest/dev.stamp: $(inputs) constraints-oldest.txt
	.ci/install .venv-oldest constraints-oldest.txt dev
	touch $@
