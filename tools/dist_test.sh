#!/usr/bin/env bash
# Evaluate with several processes: bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]
# The rest is as in dist_train.sh.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo 'usage: bash dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]' >&2
    exit 2
fi
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python}" -m mmspatial.apis.processes "$3" \
    "$tools/test.py" "$1" "$2" --launcher pytorch "${@:4}"
