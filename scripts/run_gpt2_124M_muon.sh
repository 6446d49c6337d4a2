#!/usr/bin/env bash
# GPT-2 124M with Muon on 3.3 billion tokens of FineWeb: hyperparameters of this project. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "GPT-2 124M with Muon: how few steps of run_gpt2_124M.sh's size lead to a loss of 3.28; not tried yet"
data fineweb10B
options --model gpt2:124M --seq-len 1024 --total-batch 524288 --max-steps 6200
options --optimizer muon --muon-lr 0.02 --lr 1.8e-3 --schedule wsd --warmup 250 --final-lr-frac 0 --weight-decay 0.01
layout 1 --micro-batch 64 --recompute none
layout 8 --micro-batch 64 --zero 1 --recompute none
published loss "3.28 is the goal. Another architecture needed 3800 steps of as many tokens with Muon, 3250 with NorMuon (modded-nanogpt's records/track_3_optimization)"
run "$@"
