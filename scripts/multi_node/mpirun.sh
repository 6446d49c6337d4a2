#!/usr/bin/env bash
# Trains on the nodes of a host file, started by Open MPI's mpirun from the first of them:
#
#   HOSTS=FILE scripts/multi_node/mpirun.sh scripts/run_gpt3_6700M.sh [options]
#
# FILE has lines "NODE slots=8", the same number of GPUs on each. Program, data and output folder lie at the same path on
# all nodes (a shared file system); the build needs MPI (libopenmpi-dev). MPIRUN_FLAGS adds words to mpirun's. Variables
# NCCL_* are passed on. Needs what mpirun needs: ssh without a password, or a batch system.
# Not run on GPUs yet.
set -euo pipefail
self=$(realpath "$0")
[ "${1:-}" != --help ] || { sed -n '2,/^set\|^#SBATCH/{/^#[^S]\|^#$/s/^# \{0,1\}//p}' "$self"; exit 0; }
[ $# -gt 0 ] && [ -r "${HOSTS:-}" ] || { sed -n '4s/^# *//p' "$self" >&2 && exit 64; }
HOSTS=$(realpath "$HOSTS")
cd "$(dirname "$self")/../.."
case $HOSTS in *[[:space:]]*) echo "mpirun.sh: HOSTS=$HOSTS: a name without blanks is expected" >&2; exit 64 ;; esac

slots=$(sed 's/#.*//' "$HOSTS" | awk 'NF { n = 1; for (i = 2; i <= NF; i++) if ($i ~ /^slots=/) n = substr($i, 7); print n }')
GPUS=$(sort -u <<<"$slots") NODES=$(grep -c . <<<"$slots" || true)
if [[ ! $GPUS =~ ^[1-9][0-9]*$ ]]; then
    echo "mpirun.sh: $HOSTS: expected the same slots=N in every line, found: ${slots//$'\n'/ }" >&2
    exit 64
fi
LAUNCH="mpirun -np @RANKS --hostfile $HOSTS --map-by ppr:@GPUS:node --bind-to none -x PATH -x LD_LIBRARY_PATH"
for name in "${!NCCL_@}"; do LAUNCH+=" -x $name"; done
LAUNCH+=" ${MPIRUN_FLAGS:-}"
export GPUS NODES LAUNCH LAUNCH_SIGNAL=USR1   # which mpirun passes on; its others abort the run
exec "$@" --init mpi
