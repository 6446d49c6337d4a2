#!/usr/bin/env bash
# GPT-3 XL on 300 billion tokens of FineWeb: hyperparameters of Brown et al., 2020, table 2.1 and section B. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-3 XL, of Brown et al., 2020, table 2.1 and section B; without its growing batch and sparse attention"
data fineweb350B
options --model gpt3:1300M --seq-len 2048 --total-batch 1048576 --max-steps 286102
options --lr 2e-4 --warmup 358 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 1 --micro-batch 8
layout 8 --micro-batch 16 --zero 1
published hellaswag "54.7% zero-shot, of the paper's model on its own data (its table H.1)"
run "$@"
