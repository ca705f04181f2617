# The server for processors: docker build -f deploy/cpu.Dockerfile -t lmprog:cpu .
# The wheel has the compiled kernels, so the image needs no compiler.
FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE hatch_build.py ./
COPY kernels kernels
COPY lmprog lmprog
# Where builds of torch for processors are; without it the usual index gives a larger one.
ARG TORCH_INDEX=
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && /venv/bin/pip install --no-cache-dir -c constraints.txt "$(ls /wheels/*.whl)[server,hub,grammar]"

FROM python:3.11-slim-bookworm
# torch uses OpenMP
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home lmprog \
    && install --directory --owner lmprog /home/lmprog/.cache
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/lmprog
EXPOSE 8000
# /ready needs no key; it is 503 until a runtime serves, and while none does
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
# Listening beyond the container needs a key: LMPROG_API_KEY
ENTRYPOINT ["lmprog", "serve"]
CMD ["nano", "--host", "0.0.0.0"]
