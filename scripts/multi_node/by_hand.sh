#!/usr/bin/env bash
# Trains on several nodes with neither MPI nor a batch system. Run it on every node, with the node's number:
#
#   NODE=0 NODES=2 HEAD=node0 scripts/multi_node/by_hand.sh scripts/run_gpt3_6700M.sh [options]      (on node0)
#   NODE=1 NODES=2 HEAD=node0 scripts/multi_node/by_hand.sh scripts/run_gpt3_6700M.sh [options]      (on node1)
#
# INIT=tcp (else): ranks meet at HEAD, which the other nodes reach on PORT (29500) and any port above 1023. INIT=fs: they
# meet in a folder beside the output, HEAD is not read. Program, data and output folder lie at the same path on all nodes
# (a shared file system), and every node has the same number of GPUs. With --data-only node 0 gets the data beforehand.
# The secret of the run, by which ranks know each other from strangers, is TRAIN_GPT_SECRET, else made once and kept in
# the folder of outputs (RUNS), for its owner to read.
# A signal to any of them stops all, so no node starts a run again by itself (RESTARTS=0). Not run on GPUs yet.
set -euo pipefail
self=$(realpath "$0")
[ "${1:-}" != --help ] || { sed -n '2,/^set\|^#SBATCH/{/^#[^S]\|^#$/s/^# \{0,1\}//p}' "$self"; exit 0; }
cd "$(dirname "$self")/../.."
export RESTARTS=${RESTARTS:-0}
if [ $# -eq 0 ] || [[ ! ${NODE:-} =~ ^[0-9]+$ || ! ${NODES:-} =~ ^[1-9][0-9]*$ ]]; then
    sed -n '4s/^# *//p' "$self" >&2
    exit 64
fi
runs=${RUNS:-runs}
case ${INIT:-tcp} in
    tcp)
        [ -n "${HEAD:-}" ] || { echo "by_hand.sh: HEAD is to be the name or address of node 0" >&2; exit 64; }
        case $HEAD in \[*) ;; *:*) HEAD="[$HEAD]" ;; esac   # an address of IPv6
        init=(--init tcp --init-address "$HEAD:${PORT:-29500}")
        if [ -z "${TRAIN_GPT_SECRET:-}" ]; then
            mkdir -p "$runs"
            own=$(umask 077 && mktemp "$runs/.secret.XXXXXX")
            od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$own"
            ln "$own" "$runs/.secret" 2>/dev/null || true   # the first one's stays
            rm "$own"
            TRAIN_GPT_SECRET=$(cat "$runs/.secret")
        fi
        export TRAIN_GPT_SECRET
        ;;
    fs)
        mkdir -p "$runs/rendezvous"
        init=(--init fs --init-folder "$runs/rendezvous")
        ;;
    *) echo "by_hand.sh: INIT=$INIT: expected tcp or fs" >&2; exit 64 ;;
esac
export NODE NODES LAUNCH="scripts/launch.sh -n @GPUS env WORLD_SIZE=@RANKS scripts/multi_node/rank_of_node.sh"
exec "$@" "${init[@]}"
