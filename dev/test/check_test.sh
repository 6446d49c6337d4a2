#!/usr/bin/env bash
# `train_gpt check`: what is right passes and leaves nothing behind, alone and with 2 and 4 ranks; each thing that can be
# wrong is planted, named in its line, and ends with the code that the run itself has, while the other lines are right.
# Alone: it predicts how long steps take.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

numbers_as_data 4000 2000
options() {   # DATA
    echo --train-data "$1/*train*.bin" --val-data "$1/*val*.bin" --layers 2 --heads 2 --channels 32 --seq-len 32 \
        --micro-batch 2 --max-steps 20 --val-every 5 --sample-every 0
}
# check NAME CODE RANKS "LINES" OPTIONS...: LINES are patterns, separated by |; OPTIONS are not expanded
set -f
said() { tail -n 12 "$work/out"; }
check() {
    local name=$1 code=$2 ranks=$3 lines=$4 launch= status pattern
    shift 4
    [ "$ranks" -eq 1 ] || launch="scripts/launch.sh -n $ranks"
    timeout 600 $launch "$train_gpt" check "$@" >"$work/out" 2>&1
    status=$?
    [ "$status" -eq "$code" ]
    verdict $? "$name: exit code $status, expected $code: $(said)"
    while read -r pattern; do
        grep -qE -- "$pattern" "$work/out"
        verdict $? "$name: expected $pattern; said: $(said)"
    done < <(tr '|' '\n' <<<"$lines")
}
run_ends() {   # NAME CODE OPTIONS...: so does the run
    local name=$1 code=$2 status
    shift 2
    timeout 600 "$train_gpt" "$@" >"$work/run.out" 2>&1
    status=$?
    [ "$status" -eq "$code" ]
    verdict $? "$name: the run ends with $status, the check with $code: $(tail -n 3 "$work/run.out")"
}
good='^model +OK|^tokens +OK +16894 in 1 file\(s\) of --train-data|^shards +OK|^memory +OK|^kernels +OK|^steps +OK .* ms each.* 20 steps would take|^the run can begin'

# ---- what is right
names() { set +f; (cd "$work" && find . | grep -vE '^./(out|before)$' | sort); set -f; }
names >"$work/before"
check "alone" 0 1 "$good|^disk +OK +at most 10 more checkpoint" $(options "$work/data") -o "$work/new/folder" --checkpoint-every 2
check "2 ranks" 0 2 "$good|^links +OK +1 pair|ranks 0 and 1|group dp of rank 0|2 ranks on this device" $(options "$work/data") --zero 1 -o "$work/new"
check "4 ranks" 0 4 "$good|^links +OK +6 pair|ranks 2 and 3|group tp of rank|group pp of rank" $(options "$work/data") --tp 2 --pp 2
cmp "$work/before" <(names)
verdict $? "nothing is left behind: $(names)"

# ---- what is said is what the run then has
check "sizes" 0 1 "^disk +OK" $(options "$work/data") -o "$work/run"
each=$(sed -nE 's/^disk .* of ([0-9.]+) MiB in .*/\1/p' "$work/out") memory=$(sed -nE 's/^memory +OK +([0-9.]+) MiB.*/\1/p' "$work/out")
run_ends "the run that was checked" 0 $(options "$work/data") -o "$work/run" --checkpoint-every 10
bytes=$(du -sb "$work/run/step_00000010" | cut -f 1)
awk -v mib="$each" -v bytes="$bytes" 'BEGIN { exit !(mib > 0 && bytes / 2^20 > mib - 0.06 && bytes / 2^20 < mib + 0.2) }'
verdict $? "a checkpoint of $bytes bytes, $each MiB were said"
took=$(sed -nE 's/^  sum +([0-9.]+) MiB.*/\1/p' "$work/run.out")
awk -v said="$memory" -v took="$took" 'BEGIN { exit !(said > 0 && took > said - 0.1 && took < said + 1) }'
verdict $? "device memory: $memory MiB were said, the run has $took MiB"

# ---- what is wrong
set +f
mkdir "$work/beyond" && cp "$work"/data/*.bin "$work/beyond" && rm "$work/beyond/tokenizer.bin"
set -f
printf '\xff\xff' | dd of="$work/beyond/train_000000.bin" bs=1 seek=5000 conv=notrunc 2>/dev/null
check "a token beyond the vocabulary" 65 1 '^tokens +WRONG .*train_000000.bin: byte 5000|^disk +OK|^memory +OK|^steps +-|^1 of these would end the run' \
    $(options "$work/beyond") --vocab-size 257 -o "$work/new"
check "a token beyond the vocabulary, 2 ranks, steps of an epoch" 65 2 '^tokens +WRONG +rank 0: .*train_000000.bin: byte 5000' \
    $(options "$work/beyond") --vocab-size 257 -o "$work/new" --max-steps -1
run_ends "a token beyond the vocabulary" 65 $(options "$work/beyond") --vocab-size 257
set +f; cp -r "$work/data" "$work/damaged"; set -f
printf '5' | dd of="$work/damaged/train_000000.bin" bs=1 seek=6000 conv=notrunc 2>/dev/null
cmp -s "$work/data/train_000000.bin" "$work/damaged/train_000000.bin" && exit 70
check "a damaged shard" 65 1 '^tokens +OK|^shards +WRONG .*damaged/train_000000.bin: byte 1024: .* hash|^memory +OK' $(options "$work/damaged")
check "a damaged shard, 2 ranks" 65 2 '^shards +WRONG +rank 0: .*damaged/train_000000.bin|^links +OK' $(options "$work/damaged")
run_ends "a damaged shard" 65 $(options "$work/damaged")
check "no manifest" 0 1 '^shards +OK +but there is no manifest.json to compare with: --train-data and --val-data|^the run can begin' \
    --overfit-single-batch 0 $(rm "$work/damaged/manifest.json" && options "$work/damaged")
check "too little disk" 74 1 '^disk +WRONG .* would be needed|Make room|^steps +OK' \
    $(options "$work/data") -o "$work/new" --checkpoint-every 1 --max-steps 900000000
check "disk enough where old checkpoints go" 0 1 '^disk +OK +at most 3 more checkpoint' \
    $(options "$work/data") -o "$work/new" --checkpoint-every 100 --max-steps 900000000 --keep-checkpoints 2
check "a folder where nothing can be made" 74 1 '^disk +WRONG +/proc/new: |^steps +OK' $(options "$work/data") -o /proc/new
run_ends "a folder where nothing can be made" 74 $(options "$work/data") -o /proc/new
check "files at the end" 0 2 "^files +OK +$work/model.bin and $work/trace.json can be written" \
    $(options "$work/data") --export-llmc "$work/model.bin" --trace "$work/trace.json"
set +f; ! ls "$work"/model.bin* "$work"/trace.json* >/dev/null 2>&1; set -f
verdict $? "trying the files leaves none"
check "an export that cannot be written" 64 1 "^files +WRONG +--export-llmc $work/data: is a folder|^steps +OK" \
    $(options "$work/data") --export-llmc "$work/data"
run_ends "an export that cannot be written" 64 $(options "$work/data") --export-llmc "$work/data"
check "a trace that cannot be written" 74 2 '^files +WRONG +rank 0: /proc/none/trace.json|^steps +OK' \
    $(options "$work/data") --trace /proc/none/trace.json
run_ends "a trace that cannot be written" 74 $(options "$work/data") --trace /proc/none/trace.json
check "memory that does not suffice" 69 1 '^memory +WRONG .*GiB a rank, of|activations +[0-9.]+ MiB|Lower --micro-batch|^steps +-' \
    $(options "$work/data") --micro-batch 1000000 --layers 500
run_ends "memory that does not suffice" 69 $(options "$work/data") --micro-batch 1000000 --layers 500
check "several mistakes" 65 1 '^shards +WRONG|^memory +WRONG|^2 of these would end the run' $(cp "$work/data/manifest.json" "$work/damaged" && options "$work/damaged") --micro-batch 1000000 --layers 500

# ---- a folder with results
check "a folder with results" 64 1 '^model +WRONG .*holds checkpoints of a run|Continue it with --resume' $(options "$work/data") -o "$work/run"
check "a run that is to be continued" 0 1 'resuming from .*step_00000020|^steps +OK +none is left' -o "$work/run" --resume
check "and for longer" 0 2 'resuming from .*step_00000020|^steps +OK .* 10 steps would take' -o "$work/run" --resume --max-steps 30
check "of other data" 64 1 '^steps +WRONG .*the run to resume had' -o "$work/run" --resume --max-steps 30 --train-data "$work/data/*val*.bin"
cat "$work/run/metrics.jsonl" | wc -l | has -x 25
verdict $? "the records are as they were"
check "options of other verbs" 64 1 '--prompt: not an option of `train_gpt check`' --prompt x
check "its help" 0 1 'Usage: train_gpt check|--keep-checkpoints' --help

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
