#!/usr/bin/env bash
# Llama 3.2 1B's shape on 300 billion tokens of FineWeb: hyperparameters of TinyLlama. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "Llama 3.2 1B's shape; learning rate, warm-up and batch of TinyLlama 1.1B (Zhang et al., 2024)"
data fineweb350B
options --model llama:1B --seq-len 2048 --total-batch 2097152 --max-steps 143051
options --lr 4e-4 --warmup 2000 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 1 --micro-batch 16 --recompute none
layout 8 --micro-batch 16 --zero 1 --recompute none
run "$@"
