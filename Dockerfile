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
# /readyz on the port of the metrics, by what is here anyway. For the Meta Service: -e METRICS_PORT=9531.
ENV METRICS_PORT=9521
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$METRICS_PORT && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ $status = 200 ]"]
ENTRYPOINT ["offset-adapter"]
CMD ["serve"]
