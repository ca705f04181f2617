# The server for one NVIDIA GPU: docker build -f deploy/cuda.Dockerfile -t lmprog:cuda .
# The kernels for the GPU are compiled by NVRTC at the first start, so neither nvcc nor headers are
# needed; NVRTC comes as a wheel, the driver from the host.
FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE hatch_build.py ./
COPY kernels kernels
COPY lmprog lmprog
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir -c constraints.txt "$(ls /wheels/*.whl)[server,hub,grammar,cuda]"

FROM python:3.11-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home lmprog \
    && install --directory --owner lmprog /home/lmprog/.cache
COPY --from=build /venv /venv
# What the container's runtime of NVIDIA must mount
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 LMPROG_DEVICE=cuda
USER 1000
WORKDIR /home/lmprog
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["lmprog", "serve"]
CMD ["nano", "--host", "0.0.0.0"]
