#!/usr/bin/env bash
# Trains on the nodes of a Slurm job, without MPI:
#
#   sbatch --nodes=2 scripts/multi_node/slurm.sh scripts/run_gpt3_6700M.sh [options]
#
# INIT=tcp (else) or INIT=fs says how ranks meet: at the first node's PORT (29500), or in a folder beside the output.
# Two minutes before the time is up, or when a rank is lost, the run saves and ends with 75: it then goes back into the
# queue and continues from there, up to REQUEUES times (100). scancel ends it for good. sbatch's own options win over
# those below. Not run on GPUs, nor under a real Slurm yet.
#SBATCH --job-name=train_gpt
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=train_gpt_%j.log
set -euo pipefail
[ "${1:-}" != --help ] || { sed -n '2,/^set\|^#SBATCH/{/^#[^S]\|^#$/s/^# \{0,1\}//p}' "$0"; exit 0; }
if [ -z "${SLURM_JOB_ID:-}" ] || [ $# -eq 0 ]; then
    sed -n '4s/^# *//p' "$0" >&2
    exit 64
fi
cd "$SLURM_SUBMIT_DIR"
export NODES=$SLURM_JOB_NUM_NODES GPUS=${SLURM_NTASKS_PER_NODE:-8}
export LAUNCH="srun --nodes=@NODES --ntasks=@RANKS --ntasks-per-node=@GPUS --kill-on-bad-exit=0 --export=ALL" LAUNCH_SIGNAL=USR1
if [ "${SLURM_RESTART_COUNT:-0}" -lt "${REQUEUES:-100}" ]; then export AGAIN="scontrol requeue $SLURM_JOB_ID"; fi
case ${INIT:-tcp} in
    tcp)
        hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
        # by which ranks know each other from strangers
        TRAIN_GPT_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
        export TRAIN_GPT_SECRET
        init=(--init tcp --init-address "${hosts%%$'\n'*}:${PORT:-29500}")
        ;;
    fs)
        folder=${RUNS:-runs}/rendezvous-$SLURM_JOB_ID
        mkdir -p "$folder"
        init=(--init fs --init-folder "$folder")
        ;;
    *) echo "slurm.sh: INIT=$INIT: expected tcp or fs" >&2; exit 64 ;;
esac
exec "$@" "${init[@]}"   # this process, which gets the signal
