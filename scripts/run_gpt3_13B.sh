#!/usr/bin/env bash
# GPT-3 13B on 300 billion tokens of FineWeb: hyperparameters of Brown et al., 2020, table 2.1 and section B. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-3 13B, of Brown et al., 2020, table 2.1 and section B; without its growing batch and sparse attention"
data fineweb350B
options --model gpt3:13B --seq-len 2048 --total-batch 2097152 --max-steps 143051
options --lr 1e-4 --warmup 179 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 8 --micro-batch 4 --tp 4 --zero 1
layout 16 --micro-batch 2 --tp 8 --pp 2 --zero 1
published hellaswag "70.9% zero-shot, of the paper's model on its own data (its table H.1)"
run "$@"
