#!/usr/bin/env bash
# GPT-2 1558M on 33.6 billion tokens of FineWeb-Edu: hyperparameters of llm.c's scripts/run_gpt2_1558M.sh. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-2 1558M, as llm.c's scripts/run_gpt2_1558M.sh trains it"
data edu_fineweb100B
options --model gpt2:1558M --seq-len 1024 --total-batch 1048576 --max-steps 32000
options --lr 6e-4 --warmup 700 --final-lr-frac 0.1 --weight-decay 0.1
layout 1 --micro-batch 8 --recompute none
layout 8 --micro-batch 16 --zero 1 --recompute none
published time "24 hours on 8 H100 of 80 GB (comment in llm.c's scripts/run_gpt2_1558M.sh)"
published loss "none on FineWeb-Edu, which this run reads; the 2.831 of OpenAI's checkpoint (llm.c's dev/vislog.ipynb) is FineWeb's and no goal here"
published hellaswag "none of llm.c's run; OpenAI's checkpoint 48.9% (llm.c's dev/vislog.ipynb)"
run "$@"
