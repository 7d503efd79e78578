# Everything starts from `make run` or `make test`; both set up what they need.
# A second call skips finished steps: stamp files record them.

# 3.11, 3.12 or 3.13. Each has its own lock and environment; those of 3.11 have no suffix.
# Not ?=, since Docker's Python images set this variable to a full version.
PYTHON_VERSION := 3.11
TORCH :=
SUFFIX := $(if $(filter-out 3.11,$(PYTHON_VERSION)),-$(PYTHON_VERSION))
VENV := .venv$(SUFFIX)
LOCK := requirements$(SUFFIX).lock
BIN := $(VENV)/bin
# Uses the machine's uv if there is one; otherwise pip installs one into .uv.
UV := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
# The machine's certificates, as pip uses them: uv's own list fails behind a company's proxy.
export UV_SYSTEM_CERTS := true
# Many tests wait for servers half of the time: three workers keep two cores busy.
PYTEST_WORKERS ?= 3

.PHONY: run setup browser test test-all test-fast drill fuzz audit lint format bench lock clean help

run: setup ## answer the default study on the embedded data, and print where to look
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dml run main

test: setup browser ## the tests, with real servers, clusters and a browser
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m "not nightly"

test-all: setup browser ## these, and more drills, all studies, clusters over SSH and on two hosts
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile

test-fast: setup ## tests without servers and long training
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m "not slow and not integration"

COUNT := 10
SEED := 0
PARALLEL := 1
drill: setup ## break COUNT=10 real sweeps; SEED=0 PARALLEL=1 ONLY="17 18" FAULT=disk-full OUTPUT=drills.jsonl
	$(BIN)/python -m tests.drills --count $(COUNT) --seed $(SEED) --parallel $(PARALLEL) \
	  $(if $(FAULT),--fault $(FAULT)) $(if $(ONLY),--only $(ONLY)) $(if $(OUTPUT),--output $(OUTPUT))

CASES ?= 2000
fuzz: setup ## CASES=2000 random cases of each test in tests/fuzz, new ones at every call
	DML_FUZZ_EXAMPLES=$(CASES) $(BIN)/python -m pytest tests/fuzz --hypothesis-show-statistics

audit: setup ## locked packages with known vulnerabilities; DATABASE=all.zip uses no network
	@$(BIN)/python -m tools.audit_lock $(if $(DATABASE),--database $(DATABASE))

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## rewrite the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tests of the pages need a browser; Playwright's own cannot be downloaded everywhere.
browser: ## install Debian's Chromium if there is none
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for the tests of the pages"; \
	  (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes \
	    --no-install-recommends chromium fonts-dejavu-core) >/dev/null 2>&1 \
	  || echo "chromium could not be installed: the tests of the pages will fail"; \
	else \
	  echo "no chromium found, and only root can install it: apt-get install chromium"; \
	fi

bench: setup ## speed and memory against peers, as ratios of one run
	$(BIN)/python -m benchmarks

setup: $(VENV)/.installed $(VENV)/.editable

# TORCH=cpu installs torch's CPU builds, without CUDA: uv knows the index of PyTorch, and
# TORCH_INDEX=URL names another index that has them.
ifeq ($(TORCH),cpu)
TORCH_OPTIONS := $(if $(TORCH_INDEX),--index $(TORCH_INDEX),--torch-backend cpu)
LEFT_OUT := ^(cuda-|nvidia-|triton)
else ifneq ($(TORCH),)
$(error TORCH must be cpu or unset. Got $(TORCH))
else
# Empty lines.
LEFT_OUT := ^$$
endif

$(VENV)/.installed: $(LOCK) | $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) $(VENV)
	grep -vE '$(LEFT_OUT)' $(LOCK) > $(VENV)/requirements.txt
	VIRTUAL_ENV=$(VENV) $(UV) pip install --compile-bytecode $(TORCH_OPTIONS) -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.editable: pyproject.toml $(VENV)/.installed
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --editable .
	@touch $@

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/python -m pip install --quiet uv

# The later versions take the versions of the first, so that requirements.lock, on which the stages
# of dvc.yaml depend, changes with any of them.
COMPILE = $(UV) pip compile --quiet --upgrade --no-header --no-annotate --no-emit-index-url requirements.in
lock: | $(UV) ## resolve requirements.in again, for every version of Python
	$(COMPILE) --python-version 3.11 --output-file requirements.lock
	for version in 3.12 3.13; do \
	  $(COMPILE) --python-version $$version --constraint requirements.lock \
	    --output-file requirements-$$version.lock || exit 1; \
	done

clean: ## remove the environments and everything that can be created again
	rm -rf .venv .venv-3.12 .venv-3.13 .uv data/prepared results reports .pytest_cache .mypy_cache .ruff_cache

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
