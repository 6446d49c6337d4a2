#!/usr/bin/env bash
# OLMoE-1B-7B's shape on 350 billion tokens of FineWeb, with its hyperparameters. --help: how to use it.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"
recipe "OLMoE-1B-7B's shape (Muennighoff et al., 2024): 64 experts, 8 a token; learning rate, batch and losses of the router of its pretraining"
data fineweb350B
options --layers 16 --heads 16 --channels 2048 --head-size 128 --norm rms --positions rotary --mlp swiglu --bias 0 --qk-norm row --tie-embeddings 0
options --experts 64 --experts-per-token 8 --expert-width 1024 --router-norm 0 --aux-loss 0.000625 --router-z-loss 0.001
options --seq-len 4096 --total-batch 4194304 --max-steps 83446
options --lr 4e-4 --warmup 2500 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 1000
layout 8 --micro-batch 2 --ep 8 --zero 1 --recompute block
run "$@"
