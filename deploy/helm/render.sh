#!/bin/sh
# render.sh HELM DIRECTORY: the manifests of deploy/kubernetes, of the chart: `make chart`.
set -eu
helm=$1
directory=$2
here=$(cd "$(dirname "$0")" && pwd)
for name in config etcd meta broker network-policy; do
  "$helm" template offset-adapter "$here/offset-adapter" --namespace offset-adapter --kube-version 1.31.0 --values "$here/kubernetes.yaml" \
    --show-only "templates/$name.yaml" >"$directory/$name.yaml.new"
  # Without Helm's blanks at the ends of lines, and saying where it comes from.
  { echo "# Made by \`make chart\` of deploy/helm: change it there."; grep -v '^# Source: ' "$directory/$name.yaml.new" | sed 's/[[:space:]]*$//' | cat -s; } >"$directory/$name.yaml"
  rm "$directory/$name.yaml.new"
done
