#!/bin/sh
# Makes sure that there is a Prometheus with promtool; see unpack.sh.
exec sh "$(dirname "$0")/unpack.sh" prometheus prometheus
