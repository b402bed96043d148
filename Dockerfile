# docker build -t contexture .                               for CPUs
# docker build -t contexture:cuda --target cuda .            for NVIDIA GPUs, CUDA 13; run with --gpus all
# docker build -t contexture:tpu --target tpu .              for TPUs; run with --privileged --network host
# docker run --rm -v "$PWD:/here" -w /here contexture pretrain bert.tiny --dir runs/bert --data.path text
FROM python:3.11-slim AS base

WORKDIR /contexture
COPY requirements-runtime.lock ./
RUN pip install --no-cache-dir -r requirements-runtime.lock
COPY pyproject.toml README.md LICENSE ./
COPY contexture contexture
COPY models models
COPY train train
COPY data data
COPY interchange interchange
COPY configs configs
COPY analysis analysis
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .

ENTRYPOINT ["contexture"]

# The lock as a constraint: jax stays at its version, and chooses the CUDA libraries that belong to it.
FROM base AS cuda
RUN pip install --no-cache-dir --no-build-isolation --constraint requirements-runtime.lock -e '.[cuda,gcs]'

FROM base AS tpu
RUN pip install --no-cache-dir --no-build-isolation --constraint requirements-runtime.lock -e '.[tpu,gcs]'

# The last stage is what a build without --target makes.
FROM base AS cpu
