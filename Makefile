# Everything starts from `make run` or `make test`; both set up what they need.
# A second call skips what is done: the stamp files below remember it.

PYTHON_VERSION := 3.11
VENV := .venv
BIN := $(VENV)/bin
# A uv of the machine is used if there is one; otherwise pip puts one into .uv.
UV := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
# Many tests wait for servers half of the time, so that three keep two cores busy.
PYTEST_WORKERS ?= 3

.PHONY: run setup browser test test-fast drill fuzz audit lint format bench lock clean help

run: setup ## answer the default study on the embedded data, and say where to look
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dml run main

test: setup browser ## all tests, also the slow ones
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile

test-fast: setup ## tests that need no servers and train nothing for long
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m "not slow and not integration"

COUNT ?= 10
SEED ?= 0
PARALLEL ?= 1
drill: setup ## break COUNT=10 real sweeps; SEED=0 PARALLEL=1 ONLY="17 18" FAULT=disk-full OUTPUT=drills.jsonl
	$(BIN)/python -m tests.drills --count $(COUNT) --seed $(SEED) --parallel $(PARALLEL) \
	  $(if $(FAULT),--fault $(FAULT)) $(if $(ONLY),--only $(ONLY)) $(if $(OUTPUT),--output $(OUTPUT))

CASES ?= 2000
fuzz: setup ## CASES=2000 random cases of each test in tests/fuzz, other ones at every call
	DML_FUZZ_EXAMPLES=$(CASES) $(BIN)/python -m pytest tests/fuzz --hypothesis-show-statistics

audit: setup ## locked packages with known vulnerabilities; DATABASE=all.zip asks no server
	@$(BIN)/python -m tools.audit_lock $(if $(DATABASE),--database $(DATABASE))

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tests of the pages need a browser, and Playwright's own cannot be fetched everywhere.
browser: ## Debian's Chromium, where there is none and it can be installed
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium for the tests of the pages"; \
	  (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes \
	    --no-install-recommends chromium fonts-dejavu-core) >/dev/null 2>&1 \
	  || echo "chromium could not be installed: the tests of the pages will fail"; \
	else \
	  echo "no chromium here, and only root may install it: apt-get install chromium"; \
	fi

bench: setup ## speed and memory against peers, as ratios of one run
	$(BIN)/python -m benchmarks

setup: $(VENV)/.installed $(VENV)/.editable

$(VENV)/.installed: requirements.lock | $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) $(VENV)
	VIRTUAL_ENV=$(VENV) $(UV) pip install --compile-bytecode -r requirements.lock
	@touch $@

$(VENV)/.editable: pyproject.toml $(VENV)/.installed
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --editable .
	@touch $@

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/python -m pip install --quiet uv

lock: | $(UV) ## resolve requirements.in anew
	$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --no-header --no-annotate --no-emit-index-url requirements.in -o requirements.lock

clean: ## remove the environment and everything that can be made again
	rm -rf $(VENV) .uv data/prepared results reports .pytest_cache .mypy_cache .ruff_cache

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
