#!/usr/bin/env bash
# Did a change of the code change what is trained or saved? 24 fixed runs, twelve in each precision. FOLDER gets of each
# the metrics without times and memory, and a hash of every file of its checkpoints:
#
#   dev/test/same_runs.sh /tmp/before [BUILD]   # the build before the change (a folder such as ../old/build)
#   dev/test/same_runs.sh /tmp/after            # the build after it, on the same machine
#   diff -r /tmp/before /tmp/after              # nothing: not a bit of a loss, a norm or a checkpoint has changed
#
# A tiny model, about a second a run: 1 to 8 ranks; ZeRO 0 to 3, tp, pp (zb, interleaved), cp and all together; every
# level of recompute, accumulation, an untied head, no master weights.
folder=${1:?expected the folder to write to}
mkdir -p "$folder" && folder=$(realpath "$folder") || exit 70
build=$(realpath "${2:-$(dirname "$0")/../../build}") || exit 70
source "$(dirname "$0")/common.sh"
tokenize=${TOKENIZE:-$build/$device$variant/tokenize}
needs "$tokenize"

seq 1 8000 >"$work/numbers.txt"
"$tokenize" --tokenizer bytes --quiet --output "$work/data" --val-tokens 2000 "$work/numbers.txt" >/dev/null || exit 70

saved() {   # OUTPUT-FOLDER: what is left of a run, without what two equal runs do not share
    without_times_or_memory "$1/metrics.jsonl" >"$folder/${1##*/}.jsonl" &&
        (cd "$1" && sha256sum step_*/*) >"$folder/${1##*/}.checkpoints"
}
run() {   # NAME RANKS ARGUMENTS...
    local out=$work/$precision-$1 ranks=$2
    shift 2
    scripts/launch.sh -n "$ranks" "$build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" \
        --val-data "$work/data/*val*.bin" --layers 4 --heads 2 --channels 48 --seq-len 32 --micro-batch 2 \
        --max-steps 12 --lr 1e-3 --warmup 3 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 6 --val-max-batches 6 \
        --sample-every 0 --checkpoint-every 6 --output-dir "$out" "$@" >"$out.log" 2>&1 && saved "$out"
    verdict $? "${out##*/}: $(tail -n 3 "$out.log")"
}

for precision in $precisions; do
    needs "$build/$device-$precision$variant/train_gpt"
    run 1-rank 1 --recompute none
    run 1-rank-accumulated-block 1 --recompute block --total-batch 256
    run 1-rank-untied-no-masters 1 --recompute gelu --tie-embeddings 0 --master-weights 0
    run zero0-accumulated 3 --zero 0 --recompute none --total-batch 384
    run zero0-block 3 --zero 0 --recompute block --total-batch 192
    run zero3 3 --zero 3 --recompute none --total-batch 192
    run zero3-accumulated-block 3 --zero 3 --recompute block --total-batch 384
    run tp-zero1 4 --tp 2 --zero 1 --recompute gelu+norm --total-batch 256
    run pp-zb-zero3 4 --pp 2 --pp-schedule zb --zero 3 --recompute none --total-batch 512
    run pp-interleaved 2 --pp 2 --pp-schedule interleaved --pp-chunks 2 --recompute gelu --total-batch 256
    run cp-hybrid-zero2 4 --cp 4 --cp-mode hybrid --cp-ulysses 2 --zero 2 --recompute gelu+norm --total-batch 128
    run tp-pp-cp-zero3 8 --tp 2 --pp 2 --cp 2 --pp-schedule zb --zero 3 --recompute block --total-batch 256
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
