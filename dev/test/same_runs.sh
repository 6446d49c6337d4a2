#!/usr/bin/env bash
# Did a change of the code change what is trained? Twelve fixed runs, whose metrics are left in FOLDER without their times:
#
#   dev/test/same_runs.sh /tmp/before      # with the build before the change
#   dev/test/same_runs.sh /tmp/after       # with the build after it, on the same machine
#   diff -r /tmp/before /tmp/after         # says nothing where not a bit of a loss, a norm or the memory has changed
#
# A tiny model, some seconds a run; both precisions, 1 and 3 ranks, ZeRO 0 and 3, two levels of recompute, accumulation.
folder=${1:?expected the folder to write to}
mkdir -p "$folder" && folder=$(realpath "$folder") || exit 70
source "$(dirname "$0")/common.sh"
needs "$tokenize"

seq 1 8000 >"$work/numbers.txt"
"$tokenize" --tokenizer bytes --quiet --output "$work/data" --val-tokens 2000 "$work/numbers.txt" || exit 70
run() {   # NAME RANKS ARGUMENTS...
    local name=$1 ranks=$2 out=$work/$1
    shift 2
    scripts/launch.sh -n "$ranks" "build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" \
        --val-data "$work/data/*val*.bin" --layers 3 --heads 2 --channels 48 --seq-len 32 --micro-batch 2 --max-steps 12 \
        --lr 1e-3 --warmup 3 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 6 --val-max-batches 6 --sample-every 0 \
        --output-dir "$out" "$@" >"$out.log" 2>&1 && without_times "$out/metrics.jsonl" >"$folder/$name.jsonl"
    verdict $? "$name: $(tail -n 3 "$out.log")"
}

for precision in $precisions; do
    run $precision-1-rank 1 --recompute none
    run $precision-1-rank-accumulated-block 1 --recompute block --total-batch 256
    run $precision-3-ranks-zero0-accumulated 3 --zero 0 --recompute none --total-batch 384
    run $precision-3-ranks-zero0-block 3 --zero 0 --recompute block --total-batch 192
    run $precision-3-ranks-zero3 3 --zero 3 --recompute none --total-batch 192
    run $precision-3-ranks-zero3-accumulated-block 3 --zero 3 --recompute block --total-batch 384
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
