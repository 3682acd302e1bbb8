# The adapter, the Meta Service and the console in one image: `docker run IMAGE serve` (default), `meta` or `console`.
# The console's packages are some 4 MB, which the other two never load. Without it: --build-arg LOCK=requirements/runtime.lock.
# With the journal (some 240 MB more), and without the console: docker build --build-arg LOCK=requirements/journal.lock .
# The base by its digest: debian:bookworm-20260824-slim. `docker buildx imagetools inspect debian:bookworm-slim` shows the newest one.
ARG BASE=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
FROM ${BASE} AS build
ARG LOCK=requirements/console.lock
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/offset-adapter
WORKDIR /src
COPY requirements requirements
RUN /opt/offset-adapter/bin/pip install --no-cache-dir --require-hashes -r "$LOCK"
# What builds the package stays out of the image, and is locked as well: without isolation pip fetches nothing by itself.
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY adapter adapter
COPY config config
COPY pyspark_offsets pyspark_offsets
COPY pyspark_offset_journal pyspark_offset_journal
# The history stays out of the image: --build-arg COMMIT=$(git rev-parse HEAD) says what `offset-adapter --version` tells.
ARG COMMIT
RUN OFFSET_ADAPTER_COMMIT=$COMMIT /opt/build/bin/pip wheel --no-cache-dir --no-index --no-build-isolation --no-deps --wheel-dir /wheels . \
 && /opt/offset-adapter/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && cd /opt/offset-adapter/lib/python3*/site-packages \
 && rm -rf pip* setuptools* pkg_resources _distutils_hack distutils-precedence.pth /opt/offset-adapter/bin/pip* /opt/offset-adapter/bin/*ctivate* \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/offset-adapter/lib

# The root of a container is read-only: without what is compiled above, each start would compile it again.

# Python and what it needs; no package manager, no Perl, nothing that changes users or mounts, and no setuid.
FROM ${BASE} AS system
RUN apt-get update && apt-get install -y --no-install-recommends python3 \
 && useradd --uid 10001 --home-dir /var/lib/offset-adapter --create-home --skel /nowhere offset-adapter \
 && dpkg --purge --force-all $(dpkg-query --show --showformat '${Package} ' '*perl*' usrmerge debconf apt 'libapt-pkg*' libgnutls30 gpgv \
      debian-archive-keyring e2fsprogs libext2fs2 logsave mount login passwd adduser 2>/dev/null) 2>/dev/null \
 && find / -xdev -type f -perm /6000 -exec chmod ug-s {} + \
 && rm -rf /var/lib/apt /var/cache/* /var/log/* /etc/apt

# One layer, without what was removed.
FROM scratch
COPY --from=system / /
COPY --from=system --chown=10001:10001 /var/lib/offset-adapter /var/lib/offset-adapter
COPY --from=build /opt/offset-adapter /opt/offset-adapter
COPY config /etc/offset-adapter
ENV PATH=/opt/offset-adapter/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1
# Relative paths of the settings (data/...) are below this volume. So is the Unix socket, which the commands find here.
WORKDIR /var/lib/offset-adapter
# Where `offsets reset --shift-by` keeps the ID of a shift that was not answered.
ENV XDG_STATE_HOME=/var/lib/offset-adapter/state
VOLUME /var/lib/offset-adapter
USER 10001
# /readyz on the port of the metrics, by what is here anyway. For the Meta Service: -e METRICS_PORT=9531.
ENV METRICS_PORT=9521
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$METRICS_PORT && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ $status = 200 ]"]
ENTRYPOINT ["offset-adapter"]
CMD ["serve"]
