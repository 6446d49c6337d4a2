#!/usr/bin/env bash
# GPT-3 Small on 300 billion tokens of FineWeb: hyperparameters of Brown et al., 2020, table 2.1 and section B. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-3 Small, of Brown et al., 2020, table 2.1 and section B; without its growing batch and sparse attention"
data fineweb350B
options --model gpt3:125M --seq-len 2048 --total-batch 524288 --max-steps 572204
options --lr 6e-4 --warmup 700 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
options --skip-loss-z 7 --skip-norm-z 7   # and the warm-up: llm.c's scripts/run_gpt3_125M.sh
layout 1 --micro-batch 32 --recompute none
layout 8 --micro-batch 32 --zero 1 --recompute none
published time "24 hours on 8 A100 of 80 GB (comment in llm.c's scripts/run_gpt3_125M.sh)"
published hellaswag "33.7% zero-shot, of the paper's model on its own data (its table H.1)"
run "$@"
