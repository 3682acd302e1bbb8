#!/bin/sh
# Makes a CA, certificates for the etcd clusters and the Meta Service, and the secrets that the manifests name.
#     sh deploy/kubernetes/certificates.sh DIRECTORY             # makes what is missing in DIRECTORY, and the secrets in the cluster
#     APPLY=no sh deploy/kubernetes/certificates.sh DIRECTORY    # only the files
# For more Raft groups: CLUSTERS="etcd-metadata etcd-offsets-1 etcd-offsets-2".
# For a year (DAYS=365). To renew: delete the *.crt but not ca.crt, run it again, then
# `kubectl rollout restart deployment/offset-meta`; etcd reloads its files by itself. Keep ca.key in another place.
# With cert-manager: a Certificate for each name below, with the same names, both usages (server auth and client auth), and
# the same secretName.
set -eu

directory=$1
namespace=${NAMESPACE:-offset-adapter}
days=${DAYS:-365}
clusters=${CLUSTERS:-etcd-metadata etcd-offsets-1}
umask 077
mkdir -p "$directory"
cd "$directory"

[ -f ca.crt ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
  -subj "/CN=offset-adapter etcd CA" -keyout ca.key -out ca.crt 2>/dev/null

# certificate NAME SUBJECT-ALTERNATIVE-NAMES: etcd's members show theirs as servers and, to each other, as clients.
certificate() {
  [ -f "$1.crt" ] && return
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>/dev/null
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$2" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$1.ext" -out "$1.new" 2>/dev/null
  mv "$1.new" "$1.crt" # whole, or not there: the next run makes what is missing
  rm "$1.csr" "$1.ext"
}

# members CLUSTER: the names of its pods, short and in full.
members() {
  names=DNS:localhost,IP:127.0.0.1
  for number in 0 1 2; do
    for name in "$1" "$1.$namespace.svc" "$1.$namespace.svc.cluster.local"; do
      names=$names,DNS:$1-$number.$name
    done
  done
  echo "$names"
}

for cluster in $clusters; do
  certificate "$cluster" "$(members "$cluster")"
done
certificate offset-meta DNS:offset-meta

[ "${APPLY:-yes}" = yes ] || exit 0
for name in $clusters offset-meta; do
  secret=$name-tls
  [ "$name" = offset-meta ] && secret=offset-meta-etcd-tls
  kubectl --namespace "$namespace" create secret generic "$secret" --from-file=ca.crt=ca.crt \
    --from-file=tls.crt="$name.crt" --from-file=tls.key="$name.key" --dry-run=client --output=yaml | kubectl apply --filename -
done
