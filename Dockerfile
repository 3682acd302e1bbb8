# The adapter and the Meta Service in one image: `docker run IMAGE serve` (default) or `docker run IMAGE meta`.
# With the journal (some 240 MB more): docker build --build-arg LOCK=requirements-journal.lock .
FROM debian:bookworm-slim AS build
ARG LOCK=requirements.lock
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/offset-adapter
WORKDIR /src
COPY requirements.lock requirements-journal.lock ./
RUN /opt/offset-adapter/bin/pip install --no-cache-dir --require-hashes -r "$LOCK"
COPY pyproject.toml README.md LICENSE ./
COPY adapter adapter
COPY pyspark_offsets pyspark_offsets
COPY pyspark_offset_journal pyspark_offset_journal
RUN /opt/offset-adapter/bin/pip install --no-cache-dir --no-deps . \
 && rm -rf /opt/offset-adapter/lib/python3*/site-packages/pip* /opt/offset-adapter/lib/python3*/site-packages/setuptools* \
 && find /opt/offset-adapter -name __pycache__ -prune -exec rm -rf {} +

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --home-dir /var/lib/offset-adapter --create-home offset-adapter
COPY --from=build /opt/offset-adapter /opt/offset-adapter
COPY config /etc/offset-adapter
ENV PATH=/opt/offset-adapter/bin:$PATH \
    PYTHONUNBUFFERED=1
# Relative paths of the settings (data/...) are below this volume. So is the Unix socket, which the commands find here.
WORKDIR /var/lib/offset-adapter
VOLUME /var/lib/offset-adapter
USER 10001
# The Meta Service listens elsewhere: run it with -e OFFSET_ADAPTER_ADDRESS=127.0.0.1:9530.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["offset-adapter", "health"]
ENTRYPOINT ["offset-adapter"]
CMD ["serve"]
