#!/usr/bin/env bash
# GPT-2 124M on 9.9 billion tokens of FineWeb: hyperparameters of llm.c's scripts/run_gpt2_124M.sh. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-2 124M, as llm.c's scripts/run_gpt2_124M.sh trains it"
data fineweb10B
options --model gpt2:124M --seq-len 1024 --total-batch 524288 --max-steps 18865
options --lr 6e-4 --warmup 700 --final-lr-frac 0 --weight-decay 0.1
layout 1 --micro-batch 64 --recompute none
layout 8 --micro-batch 64 --zero 1 --recompute none
published time "94 minutes on 8 A100 of 80 GB (comment in llm.c's scripts/run_gpt2_124M.sh)"
published loss "3.2722 by llm.c at step 19560, 10.26 billion tokens (modded-nanogpt's records/2024-10-13_llmc/main.log); OpenAI's checkpoint 3.425 (llm.c's dev/vislog.ipynb)"
published hellaswag "29.9% by llm.c's run (its discussion 481); OpenAI's checkpoint 29.4% (llm.c's dev/vislog.ipynb)"
run "$@"
