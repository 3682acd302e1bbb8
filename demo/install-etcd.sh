#!/bin/sh
# Makes sure that there is an etcd, 3.4.23 or newer; see unpack.sh.
exec sh "$(dirname "$0")/unpack.sh" etcd-server etcd
