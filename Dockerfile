# The images that run evenshard: `cpu` and `cuda` run the stages, `mlflow` is the tracking server of k8s/.
#
#   make image TARGETS="cpu cuda mlflow"
#
# labels them with version, commit and source. Each image lists its Python packages in /opt/evenshard/sbom.cdx.json (CycloneDX).
#
# Where pip finds packages is the builder's business: pass PIP_INDEX_URL or PIP_EXTRA_INDEX_URL with --build-arg, or a
# whole pip.conf with --secret id=pip,src=FILE. None of them stays in the image. On a plain package index torch is a
# CUDA build: for `cpu`, name PyTorch's own CPU index as PIP_EXTRA_INDEX_URL.
#
# The digest is that of the index of all platforms, of September 2026, with Python 3.11.16; `make base-digest` takes the newest.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# pip lives in a venv of its own, so that none is left in the images.
FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /build/tools && /build/tools/bin/pip install --quiet --upgrade pip \
    && /build/tools/bin/pip install --quiet cyclonedx-bom==7.5.0 \
    && python3 -m venv --without-pip /opt/evenshard \
    && printf '#!/bin/sh\nexec /build/tools/bin/pip --python /opt/evenshard/bin/python install --quiet "$@"\n' \
        > /usr/local/bin/add && chmod +x /usr/local/bin/add
# Tests and C headers of the libraries: a sixth of the image.
RUN printf '%s\n' '#!/bin/sh' 'set -e' 'cd /opt/evenshard/lib/python3*/site-packages' \
        'for tests in matplotlib numpy pandas pyarrow scipy sklearn sympy; do' \
        '  [ ! -d $tests ] || find $tests -type d -name tests -prune -exec rm -rf {} +' \
        'done' \
        'rm -rf torch/test torch/include torch/bin/*Test torch/bin/test_* torch/bin/protoc* pyarrow/include' \
        > /usr/local/bin/trim && chmod +x /usr/local/bin/trim
RUN printf '%s\n' '#!/bin/sh' \
        'exec /build/tools/bin/cyclonedx-py environment --output-reproducible \' \
        '    --output-file /opt/evenshard/sbom.cdx.json /opt/evenshard/bin/python' \
        > /usr/local/bin/list-packages && chmod +x /usr/local/bin/list-packages
WORKDIR /build/evenshard

# What evenshard needs, in a layer of its own: it is built again for a new pyproject.toml, not for a new line of code.
# kfp is there for its executor, which runs on the standard library and typing_extensions, and the clients of Kubeflow
# Pipelines and Kubernetes for the exit handler; TorchRec would bring the CUDA build of FBGEMM, see the Makefile.
FROM build AS build-evenshard
ARG KFP_VERSION=2.17.0
ARG EXTRA=cpu
COPY requirements requirements
COPY pyproject.toml LICENSE ./
COPY src/evenshard/version.py src/evenshard/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    touch README.md && mkdir components pipelines \
    && add --constraint requirements/constraints-${EXTRA}.txt ".[${EXTRA},loop,torchrec,tracking]" \
    && add --constraint requirements/constraints-${EXTRA}.txt kfp-server-api kubernetes \
    && add --constraint requirements/constraints-${EXTRA}.txt --no-deps torchrec "kfp==${KFP_VERSION}" \
    && trim
COPY README.md params.yaml ./
COPY components components
COPY pipelines pipelines
COPY src src
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    add --no-deps --force-reinstall . && list-packages

FROM build AS build-mlflow
COPY requirements requirements
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    add --constraint requirements/constraints-cpu.txt mlflow Flask-WTF==1.3.0 boto3==1.43.117 'psycopg[binary]==3.3.9' \
    && trim && list-packages

FROM ${BASE_IMAGE} AS runtime
ARG BASE_IMAGE
LABEL org.opencontainers.image.base.name=${BASE_IMAGE}
# Nothing is written outside /tmp and /work, so the root file system can be read-only.
ENV PATH=/opt/evenshard/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DVC_NO_ANALYTICS=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    EVENSHARD_IN_IMAGE=1
RUN mkdir /work && chown 10001:10001 /work
WORKDIR /work
USER 10001:10001

FROM runtime AS mlflow
COPY --from=build-mlflow /opt/evenshard /opt/evenshard
CMD ["mlflow", "server", "--help"]

FROM runtime AS cuda
# The driver comes from the node, through NVIDIA's container toolkit; the CUDA libraries come with torch.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-evenshard /opt/evenshard /opt/evenshard
RUN python3 -c 'from importlib.metadata import version; version("fbgemm_gpu")' \
    || { echo 'the target cuda needs --build-arg EXTRA=cuda' >&2; exit 1; }
CMD ["evenshard", "--help"]

# No ENTRYPOINT: Kubeflow's local Docker runner would put it in front of its own command.
FROM runtime AS cpu
COPY --from=build-evenshard /opt/evenshard /opt/evenshard
CMD ["evenshard", "--help"]
