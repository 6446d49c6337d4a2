#!/usr/bin/env bash
# GPT-2 350M on 31.5 billion tokens of FineWeb: hyperparameters of llm.c's scripts/run_gpt2_350M.sh. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-2 350M, as llm.c's scripts/run_gpt2_350M.sh trains it"
data fineweb100B
options --model gpt2:350M --seq-len 1024 --total-batch 524288 --max-steps 60000
options --lr 3e-4 --warmup 700 --final-lr-frac 0 --weight-decay 0.1
layout 1 --micro-batch 32 --recompute none
layout 8 --micro-batch 64 --zero 1 --recompute none
published time "13.7 hours on 8 A100 of 80 GB (comment in llm.c's scripts/run_gpt2_350M.sh)"
published loss "2.9282 by llm.c at step 60000 (modded-nanogpt's records/011825_GPT2Medium/main.log); OpenAI's checkpoint 3.083 (llm.c's dev/vislog.ipynb)"
published hellaswag "none of llm.c's run; OpenAI's checkpoint 37.5% (llm.c's dev/vislog.ipynb)"
run "$@"
