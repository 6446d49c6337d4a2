#!/usr/bin/env bash
# GPT-3 175B on 300 billion tokens of FineWeb: hyperparameters of Brown et al., 2020, table 2.1 and section B. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-3 175B, of Brown et al., 2020, table 2.1 and section B; without its growing batch and sparse attention"
data fineweb350B
options --model gpt3:175B --seq-len 2048 --total-batch 3145728 --max-steps 95368
options --lr 6e-5 --warmup 119 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 128 --micro-batch 1 --tp 8 --pp 16 --pp-schedule interleaved --pp-chunks 2 --zero 1
published hellaswag "78.9% zero-shot, of the paper's model on its own data (its table H.1)"
run "$@"
