#!/usr/bin/env bash
# Evaluate under Slurm: bash tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]
# The environment is as in slurm_train.sh.
set -euo pipefail
if [ $# -lt 4 ]; then
    echo 'usage: bash slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]' >&2
    exit 2
fi
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$tools/slurm_run.sh"
slurm_run "$1" "$2" bash "$tools/dist_test.sh" "$3" "$4" "$GPUS_PER_NODE" "${@:5}"
