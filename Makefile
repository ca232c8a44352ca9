# Two commands: `make run` runs the whole loop on real CPU kernels, `make test` runs the tests.
# EXTRA=cuda installs the CUDA build of FBGEMM instead of the CPU build (see README).

PYTHON ?= python3
EXTRA ?= cpu
BIN := .venv/bin

export DVC_NO_ANALYTICS = 1
export MLFLOW_DISABLE_TELEMETRY = true
export NO_MKDOCS_2_WARNING = 1
export MPLCONFIGDIR = $(CURDIR)/.venv/cache
# With this variable set, each stage of the loop compiles torch, FBGEMM and MLflow again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test test-all fuzz test-containers test-floors test-torchrec test-torchrec-planner check generate docs docs-output bench dataset use image base-image base-digest release clean

setup: .venv/ready

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What the loop needs, without docs and tests. Modules are compiled when first imported: most never are.
.venv/loop: pyproject.toml requirements/constraints-$(EXTRA).txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("evenshard needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	$(INSTALL) --upgrade pip
	$(INSTALL) --no-compile --constraint requirements/constraints-$(EXTRA).txt --editable '.[$(EXTRA),loop,tracking]'
	@mkdir -p .venv/cache && touch $@

# TorchRec comes last and alone: it asks for the CUDA build of FBGEMM, which would shadow the CPU build.
.venv/ready: .venv/loop
	$(INSTALL) --constraint requirements/constraints-$(EXTRA).txt --editable '.[$(EXTRA),loop,torchrec,mlops,docs,dev]'
	$(INSTALL) --constraint requirements/constraints-$(EXTRA).txt --no-deps torchrec
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@

run: .venv/loop
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dvc repro --quiet
	@echo "Up to date: reports/ and dvc.lock. What git shows as changed there is the result to commit (docs/dvc.md)."
	@$(BIN)/python tools/mlflow_address.py

# One process for each core; a file's tests run in one of them, and so do all that share a server.
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest \
    --numprocesses logical --maxprocesses 8 --dist loadgroup --no-loadscope-reorder

# What runs in process, and one of each kind of program: a training on several ranks, a server, a pipeline, a wheel.
test: setup
	@$(PYTEST)

# All tests, with those that are marked slow, but not those of the image.
test-all: setup
	@$(PYTEST) -m 'not containers'

# Spoilt inputs for everything that reads what others wrote: make fuzz FUZZ=2000. What fails stays in work/fuzz.
FUZZ ?= 100000
fuzz: setup
	@PYTHONPATH=tests $(BIN)/python -m support.fuzz --count $(FUZZ)

# Builds the image and runs the pipelines in containers of it; skipped, with the reason, where podman cannot run.
test-containers: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -m containers -rs tests/kubeflow/test_containers.py

# The tests of the planner with another TorchRec, which shadows that of .venv: make test-torchrec TORCHREC_VERSION=1.9. Torch and
# FBGEMM stay.
TORCHREC_VERSION ?= 1.7
TORCHREC ?= work/torchrec-$(TORCHREC_VERSION)
TORCHREC_TESTS ?= tests/with_torchrec/planner tests/with_torchrec/test_cpu_job.py
test-torchrec: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(TORCHREC) 'torchrec==$(TORCHREC_VERSION).*'
	@PYTHONPATH="$(CURDIR)/$(TORCHREC)" $(BIN)/python -m pytest -m 'not containers' --override-ini filterwarnings= $(TORCHREC_TESTS)

# TorchRec's own tests of its planner with EvenshardPlanner in its place. Its wheel has none: TORCHREC_REPO=path/to/a/checkout.
TORCHREC_REPO ?=
test-torchrec-planner: setup
	@$(BIN)/python tools/torchrec_planner_tests.py $(if $(TORCHREC_REPO),--checkout $(TORCHREC_REPO))

# The tests of placing on the oldest versions that pyproject.toml allows, in an environment of 6 GB without MLflow and TorchRec.
FLOORS ?= work/floors
test-floors:
	$(PYTHON) -m venv --clear $(FLOORS)
	$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(PYTHON) -c 'import re; print(*(f"{name}=={floor}.*" for name, floor in \
	    re.findall(r"\"([\w-]+)>=([\d.]+)\"", open("pyproject.toml").read())), sep="\n")' > $(FLOORS)/floors.txt
	$(FLOORS)/bin/python -m pip install --quiet --constraint $(FLOORS)/floors.txt --editable '.[parquet,learn]' \
	    hypothesis jsonschema pandas pytest pytest-xdist
	@$(FLOORS)/bin/python -m pytest -m 'not containers' --override-ini filterwarnings= \
	    tests/tables tests/placement tests/price tests/search tests/sharders tests/planner tests/report \
	    tests/api \
	    -k "not served_model" \
	    --ignore-glob 'tests/*/test_torchrec*' --ignore tests/planner/test_knobs.py --ignore tests/api/test_approximations.py

COG := $(BIN)/cog --verbosity=1 -I . -p 'from docs.commands import *' --markers='<!--[[[cog ]]]--> <!--[[[end]]]-->'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate.py --check
	$(BIN)/mkdocs build --strict
	$(BIN)/python tools/size.py

# Writes every generated file: the components, dvc.yaml (after a change of loop.num_rounds or a file name in params.yaml), and
# the drawing of the packages in docs/architecture.md.
generate: setup
	$(BIN)/python tools/generate.py

# The site, in work/site. With --quiet, --strict passes broken links.
docs: setup
	$(BIN)/mkdocs build --strict

# Writes the outputs of documented commands, and checks the figures that sentences quote: make docs-output PAGES=docs/place.md
# FLAGS=--check compares only; a workflow does that every night.
PAGES ?= README.md docs/*.md
docs-output: setup
	$(COG) $(if $(FLAGS),$(FLAGS) --diff,-r) $(PAGES)

# All sharders compared, as in the papers' tables: make bench STUDY=mixed FLAGS="--settings 40x4 --seeds 1". Started again, it goes on.
STUDY ?= mixed
FLAGS ?=
bench: setup
	@$(BIN)/python -m benchmarks study $(STUDY) --json work/$(STUDY).json $(FLAGS)

# A cost dataset of this machine: make dataset MINUTES=55. Started again, it goes on where it stopped.
MINUTES ?= 55
HARDWARE ?= auto
DATASET ?= work/dataset
FROM := --params presets/gpu_dataset.yaml
POOL := --tables $(DATASET)/tables.parquet --tasks $(DATASET)/tasks.json
dataset: setup
	$(BIN)/evenshard generate-tables $(FROM) --tables-out $(DATASET)/tables.parquet --tasks-out $(DATASET)/tasks.json
	$(BIN)/evenshard benchmark $(FROM) $(POOL) --hardware $(HARDWARE) --budget-minutes $(MINUTES) \
	    --journal $(DATASET)/journal.jsonl --out $(DATASET)/costs.parquet
	$(BIN)/evenshard describe $(DATASET)/costs.parquet

# The images that the manifests in k8s/ name: make image TARGETS="cpu cuda mlflow" IMAGE=registry.example.com/evenshard
IMAGE ?= localhost/evenshard
TARGETS ?= cpu mlflow
IMAGE_FLAGS ?=
VERSION = $(shell sed -n 's/__version__ = "\(.*\)"/\1/p' src/evenshard/version.py)
SOURCE = $(shell sed -n 's/^Repository = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null || echo unknown)
# The date of the commit, so that a commit's images are labelled the same whenever they are built.
CREATED = $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)
OCI := org.opencontainers.image
LABELS = --label $(OCI).version=$(VERSION) --label $(OCI).revision=$(REVISION) --label $(OCI).created=$(CREATED) \
    --label $(OCI).source=$(SOURCE) --label $(OCI).licenses=Apache-2.0
image:
	for target in $(TARGETS); do podman build $(IMAGE_FLAGS) $(LABELS) --label $(OCI).title=evenshard-$$target \
	    --build-arg EXTRA=$$(test $$target = cuda && echo cuda || echo cpu) \
	    --target $$target --tag $(IMAGE):$(VERSION)-$$target . || exit 1; done

# Pins the newest base image in the Dockerfile; needs skopeo. A digest is the SHA-256 of what the registry answers.
BASE_TAG ?= docker://docker.io/library/python:3.11-slim-bookworm
base-digest:
	skopeo inspect --raw $(BASE_TAG) > $(SCRATCH).json
	sed -i "s/^\(ARG BASE_IMAGE=.*@sha256:\).*/\1$$(sha256sum < $(SCRATCH).json | cut -d ' ' -f 1)/" Dockerfile
	rm $(SCRATCH).json
	grep '^ARG BASE_IMAGE' Dockerfile

# Where no registry can be reached: a base image of Debian's packages (as root). Then make image with
# IMAGE_FLAGS="--build-arg BASE_IMAGE=localhost/python:3.11-slim".
BASE_IMAGE ?= localhost/python:3.11-slim
SCRATCH ?= work/base-image
base-image:
	debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm $(SCRATCH)
	tar -C $(SCRATCH) -c . | podman import - $(BASE_IMAGE)
	rm -rf $(SCRATCH)

# Everything of a release but the pushing, in dist/: make release IMAGE=registry.example.com/evenshard. FLAGS=--draft tries it on any commit.
release: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" IMAGE="$(IMAGE)" TARGETS="$(TARGETS)" IMAGE_FLAGS="$(IMAGE_FLAGS)" $(BIN)/python tools/release.py $(FLAGS)

# make use PRESET=paper
use: setup
	cp presets/$(PRESET).yaml params.yaml
	$(BIN)/python tools/generate.py

# Removes what was installed; what was measured stays.
clean:
	rm -rf .venv
