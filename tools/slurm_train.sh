#!/usr/bin/env bash
# Train under Slurm: bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of train.py]
# Environment: GPUS (8) in total, GPUS_PER_NODE (8), CPUS_PER_TASK (5) per GPU, SRUN_ARGS, PORT.
# Each node gets one task, in which torchrun starts a process per GPU.
set -euo pipefail
if [ $# -lt 4 ]; then
    echo 'usage: bash slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of train.py]' >&2
    exit 2
fi
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$tools/slurm_run.sh"
slurm_run "$1" "$2" bash "$tools/dist_train.sh" "$3" "$GPUS_PER_NODE" --work-dir "$4" "${@:5}"
