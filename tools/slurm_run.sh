# Sourced by slurm_train.sh and slurm_test.sh: one task per node, which torchrun multiplies.
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-$([[ $GPUS =~ ^[1-7]$ ]] && echo "$GPUS" || echo 8)}

if ! [[ $GPUS =~ ^[1-9][0-9]*$ && $GPUS_PER_NODE =~ ^[1-9][0-9]*$ ]] \
    || ((GPUS % GPUS_PER_NODE)); then
    echo "error: GPUS=$GPUS is no multiple of GPUS_PER_NODE=$GPUS_PER_NODE: every node gets the" \
        'same number, so set both such that nodes are used as wholes' >&2
    exit 2
fi

slurm_run() { # PARTITION JOB_NAME COMMAND...
    local partition=$1 job=$2
    shift 2
    # Word splitting of SRUN_ARGS is meant.
    # shellcheck disable=SC2086,SC2016
    srun --partition="$partition" --job-name="$job" --gres="gpu:$GPUS_PER_NODE" \
        --nodes="$((GPUS / GPUS_PER_NODE))" --ntasks-per-node=1 \
        --cpus-per-task="$((GPUS_PER_NODE * ${CPUS_PER_TASK:-5}))" --kill-on-bad-exit=1 \
        ${SRUN_ARGS:-} bash -c '
            export NNODES=$SLURM_NNODES NODE_RANK=$SLURM_NODEID
            export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
            export PORT=${PORT:-$((20000 + SLURM_JOB_ID % 20000))}
            exec "$@"' slurm_run "$@"
}
