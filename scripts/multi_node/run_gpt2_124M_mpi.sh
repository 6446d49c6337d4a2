#!/usr/bin/env bash
# GPT-2 124M on two nodes of eight GPUs, started by mpirun from the first: scripts/multi_node/run_gpt2_124M_mpi.sh
# The program, the data and the output folder lie at the same path on both nodes (a shared file system). Needs a build
# with MPI (libopenmpi-dev). Continues by itself from the last checkpoint. Not run on GPUs yet.
set -euo pipefail
cd "$(dirname "$0")/../.."
hosts=${HOSTS:-node0:8,node1:8}

mpirun -np 16 --host "$hosts" --bind-to none -x PATH -x LD_LIBRARY_PATH \
    ./train_gpt --init mpi --zero 1 \
    --data fineweb10B --output-dir runs/gpt2_124M \
    --model gpt2:124M --micro-batch 32 --seq-len 1024 --total-batch 524288 \
    --lr 6e-4 --warmup 700 --final-lr-frac 0 --weight-decay 0.1 \
    --val-every 250 --sample-every 20000 --checkpoint-every 1000 --keep-checkpoints 3 --resume 1
