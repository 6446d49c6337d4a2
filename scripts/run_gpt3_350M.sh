#!/usr/bin/env bash
# GPT-3 Medium on 300 billion tokens of FineWeb: hyperparameters of Brown et al., 2020, table 2.1 and section B. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-3 Medium, of Brown et al., 2020, table 2.1 and section B; without its growing batch and sparse attention"
data fineweb350B
options --model gpt3:350M --seq-len 2048 --total-batch 524288 --max-steps 572204
options --lr 3e-4 --warmup 715 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 1 --micro-batch 16
layout 8 --micro-batch 32 --zero 1
published hellaswag "43.6% zero-shot, of the paper's model on its own data (its table H.1)"
run "$@"
