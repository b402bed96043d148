# make test | test-oldest | long | lint | docs | parity | mutants [RANDOM=300 SEED=1] | fuzz MINUTES=30 | demo | bench | plans | gpu-plans | soak | screenshots | lock | clean  PYTHON=python3.12 chooses the interpreter of .venv
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: test test-oldest long lint docs parity mutants fuzz demo bench plans gpu-plans soak screenshots lock clean

# Images of containers often forbid bytecode: each process, and each worker of the tests, would compile all sources anew.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUNTIME := .venv/installed-runtime
STAMP  := .venv/installed
PARITY := .venv/installed-parity
DOCS   := .venv/installed-docs
OLDEST := .venv-oldest/installed
SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer: make PYTHON=python3.12")

# What the package itself needs. Redone when the lock or the list of packages changes. setuptools comes from the lock, so
# the editable install needs no second environment.
$(RUNTIME): requirements-runtime.lock pyproject.toml
	@$(PYTHON) -c '$(SUPPORTED)'
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(PIP) install -r requirements-runtime.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

# The same versions, and the development tools.
$(STAMP): requirements.lock $(RUNTIME)
	$(PIP) install -r requirements.lock
	touch $@

$(PARITY): requirements-parity.lock $(STAMP)
	$(PIP) install -r requirements.lock -r requirements-parity.lock
	touch $@

$(DOCS): requirements-docs.lock $(STAMP)
	$(PIP) install -r requirements.lock -r requirements-docs.lock
	touch $@

$(OLDEST): requirements-oldest.lock pyproject.toml
	@$(PYTHON) -c '$(SUPPORTED)'
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip --disable-pip-version-check --quiet install -r requirements-oldest.lock
	.venv-oldest/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation -e .
	touch $@

test: $(STAMP)    ## the quick suite on two cores, with its processor time by file
	$(BIN)/python -m pytest -n 2 --dist worksteal $(if $(BUDGET),--budget)

test-oldest: $(OLDEST) ## the same on the lowest versions that pyproject.toml allows
	.venv-oldest/bin/python -m pytest -n 2 --dist worksteal

long: $(STAMP)    ## all other cases of the laws, and what takes minutes each; PART=0/4: its first quarter
	$(BIN)/python -m pytest -m long -n 2 --dist worksteal --timeout 3600 $(if $(PART),--part $(PART))

# pyright and mkdocstrings do not follow editable installs: they get a folder that links contexture.models to models/, and
# so on.
TYPED := .venv/typed/contexture
define link_typed
rm -rf $(TYPED) && mkdir -p $(TYPED)
ln -s $(addprefix $(CURDIR)/,$(wildcard contexture/*) models train data interchange analysis configs) $(TYPED)
endef
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell .
	$(link_typed)
	$(BIN)/pyright

docs: $(DOCS)     ## the documentation as a site, in site/; links and references that lead nowhere are errors
	$(link_typed)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

parity: $(PARITY) ## against torch and transformers
	$(BIN)/python -m pytest -m parity -n 2 --dist worksteal

mutants: $(STAMP) ## one-line faults that the tests must see; goes on where it was stopped; RANDOM=300 SEED=1: drawn by chance
	$(BIN)/python -m tests.mutants $(if $(RANDOM),--random $(RANDOM) --seed $(or $(SEED),0))

MINUTES ?= 30
fuzz: $(STAMP)    ## damaged and odd inputs for every parser and the command line; what is found is kept in tests/fuzz/found
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

demo: $(RUNTIME)
	$(BIN)/python examples/demo.py

bench: $(PARITY)
	$(BIN)/python benchmarks/bert_step.py
	$(BIN)/python benchmarks/bert_step.py --dtype bfloat16 --rounds 4
	$(BIN)/python benchmarks/shakespeare.py speed
	$(BIN)/python benchmarks/elmo_step.py --steps 2 --rounds 4
	$(BIN)/python benchmarks/writing.py --lines 1
	$(BIN)/python benchmarks/writing.py --lines 16
	$(BIN)/python benchmarks/calls.py
	$(BIN)/python benchmarks/preparation.py --family bert
	$(BIN)/python benchmarks/short_texts.py --what finetune --warmup 32 --rounds 3
	$(BIN)/python benchmarks/short_texts.py --what predict --rounds 3
	$(BIN)/python benchmarks/short_texts.py --what embed --rounds 3

gpu-plans: $(STAMP) ## trainings compiled for one GPU: docs/gpus.md; needs the extra [plan-gpu]
	$(PIP) install -e ".[plan-gpu]"
	$(BIN)/python benchmarks/gpu_plans.py

plans: $(STAMP)  ## every recipe compiled for the smallest slice for it: docs/plans.md; needs the extra [plan-tpu]
	$(PIP) install -e ".[plan-tpu]"
	$(BIN)/python benchmarks/plans.py

soak: $(STAMP)   ## 20,000 steps of each family with random kills, against runs that are left alone
	$(BIN)/python benchmarks/soak.py

screenshots: $(STAMP) ## the pictures of docs/images; needs chromium and chromium-driver
	$(BIN)/python -m tests.analysis.pages.screenshots

# The universal locks for Linux and macOS. Versions stay as they are, and UPGRADE=--upgrade takes the newest.
# requirements-runtime.lock is the part of requirements.lock that the package itself needs, and setuptools, which installs it.
# requirements-oldest.lock has the lower bounds of pyproject.toml; what these ask for is always the newest that fits them.
# requirements-docs.lock is what the extra [docs] adds to requirements.lock.
# requirements-parity.lock is what `pip install torch transformers peft tensorflow-cpu` adds to requirements.lock with torch's
# CPU wheel: it names no CUDA packages itself, and a torch that wants them brings them.
UPGRADE ?=
define compile
touch $(1) && cp $(1) .venv/new.lock
$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --no-header --no-annotate \
  $(2) pyproject.toml --output-file .venv/new.lock
sed -E "/sys_platform == '(win32|emscripten)'/d; s/ ; sys_platform != '(win32|emscripten)'$$//" .venv/new.lock > $(1)
endef
lock: $(STAMP)
	$(PIP) install uv
	$(call compile,requirements.lock,$(UPGRADE) --extra dev)
	echo setuptools > .venv/build.in
	$(call compile,requirements-runtime.lock,--constraint requirements.lock .venv/build.in)
	$(call compile,requirements-docs.lock,$(UPGRADE) --constraint requirements.lock --extra docs)
	grep -vxFf requirements.lock requirements-docs.lock > .venv/new.lock
	cp .venv/new.lock requirements-docs.lock
	$(call compile,requirements-oldest.lock,--upgrade --resolution lowest-direct --extra dev)

clean:
	rm -rf .venv .venv-oldest demo runs build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
