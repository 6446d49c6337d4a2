#!/usr/bin/env bash
# The main job on real input, on any machine, without a download: `dev/tools/quickstart.sh cpu|cuda bf16|fp32`.
#
# Installs missing packages, builds, learns a vocabulary from the C and C++ headers of this machine and tokenizes them,
# trains a small model for about two minutes, compares it with a bigram model of the same tokens, draws the loss curve,
# prints a sample.
set -euo pipefail
cd "$(dirname "$0")/../.."
device=$1
precision=$2
out=runs/quickstart
seconds=${QUICKSTART_SECONDS:-110}   # of training

bold= plain=
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

say "Packages"
dev/tools/deps.sh "$device"
echo "all there"

say "Build ($device, $precision)"
log=build/quickstart.log
mkdir -p build
build_start=$SECONDS
if ! make --no-print-directory -j"$(nproc)" DEVICE="$device" PRECISION="$precision" all >"$log" 2>&1; then
    tail -n 30 "$log"
    echo "The build failed; the whole log is in $log" >&2
    exit 70
fi
build_seconds=$((SECONDS - build_start))
echo "./train_gpt, ./tokenize"

# A model that learns something in two minutes on two cores (about 1.5 million tokens: so a small vocabulary, two layers
# and many small steps); a GPU gets a larger one.
if [ "$device" = cuda ]; then
    vocabulary=2048
    shape=(--layers 8 --heads 8 --channels 512 --seq-len 512 --micro-batch 32 --total-batch 16384 --lr 1e-3)
else
    vocabulary=512
    shape=(--layers 2 --heads 4 --channels 128 --seq-len 64 --micro-batch 12 --total-batch 768 --lr 1.5e-3)
fi

say "Data: the C and C++ headers below /usr/include, with a vocabulary of $vocabulary tokens learned from them"
data/local.sh --vocab "$vocabulary"

train=(./train_gpt --train-data 'data/local/train*.bin' --val-data 'data/local/val*.bin' "${shape[@]}"
    --final-lr-frac 0.1 --weight-decay 0.1 --val-max-batches 1000)

say "Training for about $((seconds / 60 + 1)) minutes"
rm -rf "$out" && mkdir -p "$out"
"${train[@]}" --warmup 0 --max-steps 8 --val-every 0 --sample-every 0 --output-dir "$out/timing" >"$out/timing.log" 2>&1 || {
    cat "$out/timing.log" >&2
    exit 70
}
# the number of steps that fits: the median time of a step after the first three
step_ms=$(sed -nE 's/.*"step_ms":([0-9.]+).*/\1/p' "$out/timing/metrics.jsonl" | tail -n 5 | sort -g | sed -n 3p)
steps=$(awk -v ms="$step_ms" -v s="$seconds" 'BEGIN { n = int(s * 1000 / ms); if (n < 60) n = 60; if (n > 4000) n = 4000; print n }')
echo "a step takes $step_ms ms: training $steps steps"
"${train[@]}" --warmup 20 --max-steps "$steps" --val-every $(((steps + 4) / 5)) --sample-every "$steps" --sample-tokens 256 \
    --temperature 0.7 --log-every $(((steps + 49) / 50)) --output-dir "$out"

say "Result"
val_loss=$(sed -nE 's/.*"val_loss":([0-9.]+).*/\1/p' "$out/metrics.jsonl" | tail -n 1)
bigram=$(./bigram 'data/local/train*.bin' 'data/local/val*.bin')
./loss_curve "$out" "bigram model=$bigram" -o "$out/loss.svg"
# of the validation text, to compare with models of other vocabularies
bytes_per_token=$(./tokenize --stats data/local | sed -nE 's/.* val: .* ([0-9.]+) bytes per token.*/\1/p')
awk -v v="$val_loss" -v g="$bigram" -v b="$bytes_per_token" 'BEGIN {
    print "validation loss, lower is better   nats per token   nats per byte"
    printf "  this model                       %14.4f  %14.4f\n", v, v / b
    printf "  a bigram model of these tokens   %14.4f  %14.4f\n", g, g / b
}'
echo "loss curve: $out/loss.svg"
echo "it took $SECONDS s, of which the build $build_seconds s"
awk -v v="$val_loss" -v b="$bigram" 'BEGIN { exit !(v < b) }' || {
    echo "The model did not beat the bigram model." >&2
    exit 70
}
