#!/bin/sh
# build.sh TAG ARCHIVE: builds the image of ../../Dockerfile, and writes it to ARCHIVE for `docker load` or `podman load`: `make image`.
# With Docker where its engine answers. Else with buildah, as root; then BASE=REGISTRY/debian:bookworm-slim names the base, and without BASE
# that is made here of Debian's packages (mmdebstrap, with the sources of this machine's apt), so that no registry is needed.
# COMMIT is what `offset-adapter --version` says in the image.
set -eu
tag=$1
archive=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
PATH="$PATH:/usr/sbin:/sbin"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"

mkdir -p "$(dirname "$archive")"
if docker version >/dev/null 2>&1; then
  docker build ${BASE:+--build-arg "BASE=$BASE"} --build-arg "COMMIT=${COMMIT:-}" --tag "$tag" "$root"
  docker save --output "$archive" "$tag"
  exit 0
fi
sh "$root/tests/interop/install-packages.sh" buildah:buildah

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${BASE:-}" ]; then
  BASE=localhost/offset-adapter-base:bookworm
  sources=/etc/apt/sources.list.d/debian.sources
  [ -f "$sources" ] || sources=/etc/apt/sources.list
  sh "$root/tests/interop/install-packages.sh" mmdebstrap:mmdebstrap
  # As Debian's own slim image: no manuals, no translations; the licences stay.
  mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' bookworm "$work/base.tar" "$sources"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/base.tar" / >/dev/null
  buildah commit --quiet --rm --format docker "$container" "$BASE" >/dev/null
fi

# pip in the build takes the registry and the certificates that pip takes here.
volumes="--volume $work/pip.conf:/etc/pip.conf:ro"
{
  echo "[global]"
  [ -z "${PIP_INDEX_URL:-}" ] || echo "index-url = $PIP_INDEX_URL"
  [ -z "${PIP_CERT:-}" ] || echo "cert = /etc/pip-certificates.crt"
} >"$work/pip.conf"
[ -z "${PIP_CERT:-}" ] || volumes="$volumes --volume $PIP_CERT:/etc/pip-certificates.crt:ro"

# The format of Docker has the health check, that of OCI has none.
# shellcheck disable=SC2086 - a list of options
buildah build --quiet --format docker --layers=false --pull=false $volumes --build-arg "BASE=$BASE" --build-arg "COMMIT=${COMMIT:-}" \
  --tag "$tag" --file "$root/Dockerfile" "$root"
rm -f "$archive"
buildah push --quiet "$tag" "docker-archive:$archive:$tag"
