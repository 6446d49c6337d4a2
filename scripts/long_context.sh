#!/usr/bin/env bash
# A model of GPT-2 124M's layers with a context of 131,072 tokens, shared among the GPUs by ring attention. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "12 layers of GPT-2 124M with 131,072 positions; a recipe of this project, nobody's figures"
data fineweb10B
options --layers 12 --heads 12 --channels 768 --seq-len 131072 --total-batch 1048576 --max-steps 2000
options --lr 6e-4 --warmup 100 --final-lr-frac 0.1 --weight-decay 0.1 --hellaswag 0   # each answer would take a whole context
layout 1 --micro-batch 1 --recompute block
layout 2 --micro-batch 1 --cp 2 --cp-mode ring --recompute block --zero 1
layout 8 --micro-batch 1 --cp 8 --cp-mode ring --zero 1
run "$@"
