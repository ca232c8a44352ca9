# `make run` runs the whole loop on real CPU kernels; `make test` runs the tests.
# EXTRA=cuda installs the CUDA build of FBGEMM instead of the CPU build (see README).

PYTHON ?= python3
EXTRA ?= cpu
BIN := .venv/bin

export DVC_NO_ANALYTICS = 1
export MLFLOW_DISABLE_TELEMETRY = true
export NO_MKDOCS_2_WARNING = 1
export MPLCONFIGDIR = $(CURDIR)/.venv/cache
# With this variable set, each stage of the loop recompiles torch, FBGEMM and MLflow to bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test test-all test-nightly fuzz test-containers test-floors test-torchrec test-torchrec-planner check generate docs docs-output bench dataset use image base-image base-digest release clean

setup: .venv/ready

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The environment of the loop, without docs and tests. Modules are compiled on import, because most are never imported.
.venv/loop: pyproject.toml requirements/constraints-$(EXTRA).txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("evenshard needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	$(INSTALL) --upgrade pip
	$(INSTALL) --no-compile --constraint requirements/constraints-$(EXTRA).txt --editable '.[$(EXTRA),loop,tracking]'
	@mkdir -p .venv/cache && touch $@

# TorchRec is installed last and without dependencies, because it requires the CUDA build of FBGEMM, which would shadow
# the CPU build.
.venv/ready: .venv/loop
	$(INSTALL) --constraint requirements/constraints-$(EXTRA).txt --editable '.[$(EXTRA),loop,torchrec,mlops,docs,dev]'
	$(INSTALL) --constraint requirements/constraints-$(EXTRA).txt --no-deps torchrec
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@

run: .venv/loop
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dvc repro --quiet
	@echo "Up to date: reports/ and dvc.lock. Commit their changes (docs/dvc.md)."
	@$(BIN)/python tools/mlflow_address.py

# One process per core; tests of a file, and all tests that share a server, run in the same process.
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest \
    --numprocesses logical --maxprocesses 8 --dist loadgroup --no-loadscope-reorder

# FLAGS=--record-cpu-seconds writes the CPU seconds of each test file into tests/cpu_seconds.json, which make check limits.
FLAGS ?=

# The fast tests, which start no other program; without the packages whose tests are all slow.
test: setup
	@$(PYTEST) $(FLAGS) --ignore=tests/with_torchrec --ignore=tests/benchmarks

# All tests, slow ones included, except for those of the container image.
test-all: setup
	@$(PYTEST) $(FLAGS) -m 'not containers and not nightly'

# Tests of documented outputs, calibrations and versions, which change rarely and take long.
test-nightly: setup
	@$(PYTEST) $(FLAGS) -m nightly

# Malformed inputs for all readers of users' files: make fuzz FUZZ=2000. Failing inputs are kept in work/fuzz.
FUZZ ?= 100000
fuzz: setup
	@PYTHONPATH=tests $(BIN)/python -m support.fuzz --count $(FUZZ)

# Builds the image and runs the pipelines in its containers; skipped, with the reason, if podman cannot run.
test-containers: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -m containers -rs tests/kubeflow/test_containers.py

# The planner's tests with another TorchRec, which shadows that of .venv: make test-torchrec TORCHREC_VERSION=1.9. Torch
# and FBGEMM are not replaced.
TORCHREC_VERSION ?= 1.7
TORCHREC ?= work/torchrec-$(TORCHREC_VERSION)
TORCHREC_TESTS ?= tests/with_torchrec/planner tests/with_torchrec/test_cpu_job.py
test-torchrec: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(TORCHREC) 'torchrec==$(TORCHREC_VERSION).*'
	@PYTHONPATH="$(CURDIR)/$(TORCHREC)" $(BIN)/python -m pytest -m 'not containers' --override-ini filterwarnings= $(TORCHREC_TESTS)

# TorchRec's tests of its planner, with EvenshardPlanner instead. They need a checkout: TORCHREC_REPO=path/to/torchrec.
TORCHREC_REPO ?=
test-torchrec-planner: setup
	@$(BIN)/python tools/torchrec_planner_tests.py $(if $(TORCHREC_REPO),--checkout $(TORCHREC_REPO))

# The core's tests with the oldest versions that pyproject.toml allows, in a 6 GB environment without MLflow and TorchRec.
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

# Writes every generated file: the components, dvc.yaml (after a change of loop.num_rounds or a file name in
# params.yaml), and the list of packages in docs/architecture.md.
generate: setup
	$(BIN)/python tools/generate.py

# The documentation site, in work/site. Without --quiet, because --quiet makes --strict accept broken links.
docs: setup
	$(BIN)/mkdocs build --strict

# Reruns documented commands, writes their outputs and checks numbers in sentences: make docs-output PAGES=docs/place.md
# FLAGS=--check only compares; the nightly workflow does this.
PAGES ?= README.md docs/*.md
docs-output: setup
	$(COG) $(if $(FLAGS),$(FLAGS) --diff,-r) $(PAGES)

# Compares all sharders, as in the papers' tables: make bench STUDY=mixed FLAGS="--settings 40x4 --seeds 1". Run again to
# resume.
STUDY ?= mixed
bench: setup
	@$(BIN)/python -m benchmarks study $(STUDY) --json work/$(STUDY).json $(FLAGS)

# Measures a cost dataset on this machine: make dataset MINUTES=55. Run again to resume.
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

# Builds the images of the manifests in k8s/: make image TARGETS="cpu cuda mlflow" IMAGE=registry.example.com/evenshard
IMAGE ?= localhost/evenshard
TARGETS ?= cpu mlflow
IMAGE_FLAGS ?=
VERSION = $(shell sed -n 's/__version__ = "\(.*\)"/\1/p' src/evenshard/version.py)
SOURCE = $(shell sed -n 's/^Repository = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null || echo unknown)
# The date of the commit, so that rebuilt images of a commit have the same labels.
CREATED = $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)
OCI := org.opencontainers.image
LABELS = --label $(OCI).version=$(VERSION) --label $(OCI).revision=$(REVISION) --label $(OCI).created=$(CREATED) \
    --label $(OCI).source=$(SOURCE) --label $(OCI).licenses=Apache-2.0
image:
	for target in $(TARGETS); do podman build $(IMAGE_FLAGS) $(LABELS) --label $(OCI).title=evenshard-$$target \
	    --build-arg EXTRA=$$(test $$target = cuda && echo cuda || echo cpu) \
	    --target $$target --tag $(IMAGE):$(VERSION)-$$target . || exit 1; done

# Pins the newest base image in the Dockerfile; needs skopeo. The digest is the SHA-256 of the manifest.
BASE_TAG ?= docker://docker.io/library/python:3.11-slim-bookworm
base-digest:
	skopeo inspect --raw $(BASE_TAG) > $(SCRATCH).json
	sed -i "s/^\(ARG BASE_IMAGE=.*@sha256:\).*/\1$$(sha256sum < $(SCRATCH).json | cut -d ' ' -f 1)/" Dockerfile
	rm $(SCRATCH).json
	grep '^ARG BASE_IMAGE' Dockerfile

# Builds a base image from Debian packages (as root), if no registry can be reached. Then run make image with
# IMAGE_FLAGS="--build-arg BASE_IMAGE=localhost/python:3.11-slim".
BASE_IMAGE ?= localhost/python:3.11-slim
SCRATCH ?= work/base-image
base-image:
	debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm $(SCRATCH)
	tar -C $(SCRATCH) -c . | podman import - $(BASE_IMAGE)
	rm -rf $(SCRATCH)

# Builds a release in dist/ without pushing it: make release IMAGE=registry.example.com/evenshard. FLAGS=--draft builds a
# test release from any commit.
release: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" IMAGE="$(IMAGE)" TARGETS="$(TARGETS)" IMAGE_FLAGS="$(IMAGE_FLAGS)" $(BIN)/python tools/release.py $(FLAGS)

# Replaces params.yaml by a preset: make use PRESET=paper
use: setup
	cp presets/$(PRESET).yaml params.yaml
	$(BIN)/python tools/generate.py

# Removes the environment, but no measurements.
clean:
	rm -rf .venv
