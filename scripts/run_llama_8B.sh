#!/usr/bin/env bash
# Llama 3 8B on 350 billion tokens of FineWeb: hyperparameters of Grattafiori et al., 2024. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "Llama 3 8B, of Grattafiori et al., 2024: shape and learning rate of its table 3; warm-up, end and first batch as for 405B"
data fineweb350B
options --model llama:8B --seq-len 8192 --total-batch 4194304 --max-steps 83446
options --lr 3e-4 --warmup 8000 --final-lr-frac 0.01 --weight-decay 0.1 --val-every 1000
layout 8 --micro-batch 1 --tp 2 --zero 1 --recompute none
run "$@"
