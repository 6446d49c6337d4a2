#!/usr/bin/env bash
# GPT-3 6.7B on 300 billion tokens of FineWeb: hyperparameters of Brown et al., 2020, table 2.1 and section B. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-3 6.7B, of Brown et al., 2020, table 2.1 and section B; without its growing batch and sparse attention"
data fineweb350B
options --model gpt3:6700M --seq-len 2048 --total-batch 2097152 --max-steps 143051
options --lr 1.2e-4 --warmup 179 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 1 --micro-batch 1 --recompute block --master-weights 0 --grad-dtype bf16
layout 8 --micro-batch 2 --zero 1
layout 16 --micro-batch 2 --tp 4 --pp 2 --zero 1
published hellaswag "67.4% zero-shot, of the paper's model on its own data (its table H.1)"
run "$@"
