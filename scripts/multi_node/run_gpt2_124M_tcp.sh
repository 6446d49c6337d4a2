#!/usr/bin/env bash
# GPT-2 124M on several nodes with neither MPI nor a batch system: run this on every node, with the node's number.
#   NODE=0 NODES=2 HEAD=node0 scripts/multi_node/run_gpt2_124M_tcp.sh      (on node0)
#   NODE=1 NODES=2 HEAD=node0 scripts/multi_node/run_gpt2_124M_tcp.sh      (on node1)
# Node 0 must be reachable as HEAD on port 29500 and on any port above 1023. Not run on GPUs yet.
set -uo pipefail
cd "$(dirname "$0")/../.."
gpus=${GPUS:-8} node=${NODE:?} nodes=${NODES:?} head=${HEAD:?}

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM INT HUP USR1
for ((gpu = 0; gpu < gpus; gpu++)); do
    ./train_gpt --init tcp --init-address "$head:29500" --processes $((nodes * gpus)) \
        --process-rank $((node * gpus + gpu)) --gpus-per-node "$gpus" --zero 1 \
        --data fineweb10B --output-dir runs/gpt2_124M \
        --model gpt2:124M --micro-batch 32 --seq-len 1024 --total-batch 524288 \
        --lr 6e-4 --warmup 700 --final-lr-frac 0 --weight-decay 0.1 \
        --val-every 250 --sample-every 20000 --checkpoint-every 1000 --keep-checkpoints 3 --resume 1 &
    pids+=($!)
done
result=0
for pid in "${pids[@]}"; do
    wait "$pid"
    code=$?
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done   # a signal ends the waiting, not yet the rank
    [ $code -eq 0 ] || result=$code
done
exit $result
