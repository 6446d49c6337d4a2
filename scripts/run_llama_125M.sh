#!/usr/bin/env bash
# A Llama of 125M (MobileLLM's shape) on 100 billion tokens of FineWeb: hyperparameters of SmolLM. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "Llama of 125M: the shape of MobileLLM-125M (Liu et al., 2024), learning rate, schedule and batch of SmolLM-135M"
data fineweb100B
options --model llama:125M --seq-len 2048 --total-batch 1048576 --max-steps 95367
options --lr 3e-3 --schedule wsd --warmup 2000 --final-lr-frac 0 --weight-decay 0.1 --val-every 1000
layout 1 --micro-batch 32 --recompute none
layout 8 --micro-batch 32 --zero 1 --recompute none
run "$@"
