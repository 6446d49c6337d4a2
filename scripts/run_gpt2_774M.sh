#!/usr/bin/env bash
# GPT-2 774M on 150 billion tokens of FineWeb: hyperparameters of llm.c's scripts/run_gpt2_774M.sh. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-2 774M, as llm.c's scripts/run_gpt2_774M.sh trains it"
data fineweb100B
options --model gpt2:774M --seq-len 1024 --total-batch 524288 --max-steps 286102
options --lr 2.5e-4 --warmup 700 --final-lr-frac 0 --weight-decay 0.1
layout 1 --micro-batch 16 --recompute none
layout 8 --micro-batch 32 --zero 1 --recompute none
published time "5.6 days on 8 A100 of 80 GB (comment in llm.c's scripts/run_gpt2_774M.sh)"
published loss "none of llm.c's run; OpenAI's checkpoint has 3.001 on llm.c's validation data (its dev/vislog.ipynb)"
published hellaswag "none of llm.c's run; OpenAI's checkpoint 43.2% (llm.c's dev/vislog.ipynb)"
run "$@"
