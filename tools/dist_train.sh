#!/usr/bin/env bash
# Train with several processes: bash tools/dist_train.sh CONFIG GPUS [options of train.py]
# Without a GPU the processes run on CPUs. For several machines, set NNODES, NODE_RANK,
# MASTER_ADDR and PORT on each.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo 'usage: bash dist_train.sh CONFIG GPUS [options of train.py]' >&2
    exit 2
fi
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python}" -m mmspatial.apis.processes "$2" \
    "$tools/train.py" "$1" --launcher pytorch "${@:3}"
