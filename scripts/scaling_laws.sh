#!/usr/bin/env bash
# Trains models of several sizes for several numbers of tokens, small enough for any machine, and fits a scaling law to
# their ends: scripts/scaling_laws.sh [OUTPUT_FOLDER] [TRAIN_GPT OPTIONS...]
#
#   SIZES   layers:heads:channels of each model      RATIOS  tokens per parameter of each run
#   DATA    what --data takes (local: data/local.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-runs/scaling}
shift || true
train_gpt=${TRAIN_GPT:-./train_gpt} loss_curve=${LOSS_CURVE:-build/cpu/loss_curve}
sizes=${SIZES:-2:2:32 2:2:64 4:4:64 4:4:128} ratios=${RATIOS:-2 8} data=${DATA:-local}
batch=8 length=128
case $data in */*) tokens=$data ;; *) tokens=data/$data ;; esac
vocabulary=$(od -An -t d4 -j 8 -N 4 "$tokens/tokenizer.bin" | tr -d ' ')   # llm.c's header: the number of ids

ends=()
for size in $sizes; do
    IFS=: read -r layers heads channels <<<"$size"
    model=(--layers "$layers" --heads "$heads" --channels "$channels" --seq-len "$length" --micro-batch "$batch")
    parameters=$("$train_gpt" plan "${model[@]}" --vocab-size "$vocabulary" --json 1 | sed -nE '0,/"parameters"/s/.*"parameters": ([0-9.e+]+).*/\1/p')
    for ratio in $ratios; do
        run="$folder/$layers-$channels-$ratio"
        steps=$(awk -v n="$parameters" -v r="$ratio" -v b=$((batch * length)) 'BEGIN { printf "%d", n * r / b + 1 }')
        "$train_gpt" "${model[@]}" --data "$data" --max-steps "$steps" --val-every "$steps" --sample-every 0 \
            --warmup $((steps / 20)) --final-lr-frac 0.1 --lr 1e-3 --output-dir "$run" --overwrite 1 "$@"
        ends+=("$parameters:$run")
    done
done
"$loss_curve" --fit "${ends[@]}"
