#!/usr/bin/env bash
# Training end to end: the loss of a tiny model falls below a bound, twice the same, in both precisions.
#
# The text is the numbers from 1 on, as bytes: after 60 steps the next byte is mostly known (uniform guessing: 5.55).
source "$(dirname "$0")/common.sh"
needs "$tokenize"

numbers_as_data 20000 3000
run() {   # PRECISION FOLDER ARGUMENTS...
    local precision=$1 out=$2
    shift 2
    "build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" \
        --layers 2 --heads 2 --channels 64 --seq-len 64 --micro-batch 4 --total-batch 512 --max-steps 60 --lr 1e-3 \
        --warmup 5 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 30 --val-max-batches 10 --sample-every 60 \
        --sample-tokens 8 --output-dir "$out" "$@" >"$out.log" 2>&1
    local status=$?
    [ "$status" -eq 0 ] || tail -n 5 "$out.log"
    return "$status"
}

for precision in $precisions; do
    run $precision "$work/$precision"
    verdict $? "$precision: a run of 60 steps"
    metrics=$work/$precision/metrics.jsonl
    [ "$(grep -c '"loss"' "$metrics")" -eq 60 ] && [ "$(grep -c val_loss "$metrics")" -eq 3 ]
    verdict $? "$precision: metrics.jsonl has 60 steps and 3 validations"
    sed -nE 's/.*"val_loss":([0-9.]+).*/\1/p' "$metrics" | awk 'NR == 1 && $1 < 5 { exit 1 } END { exit !($1 < 2.5) }'
    verdict $? "$precision: validation loss from above 5 to below 2.5: $(grep val_loss "$metrics" | tr '\n' ' ')"

    run $precision "$work/$precision-again"
    cmp <(without_times "$metrics") <(without_times "$work/$precision-again/metrics.jsonl")
    verdict $? "$precision: two runs are equal but for times"

    # the order of samples does not depend on the micro-batch, so the first loss is the same but for rounding
    run $precision "$work/$precision-micro" --micro-batch 8 --max-steps 5
    paste -d' ' <(sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$metrics" | head -n 1) \
        <(sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$work/$precision-micro/metrics.jsonl" | head -n 1) |
        awk '{ d = $1 - $2; exit !(d < 5e-4 && d > -5e-4) }'
    verdict $? "$precision: the first loss with another micro-batch"
done

# Checks of the stand-in on, and its streams in random orders: nothing is reported, and not a bit changes.
if [[ $device = cpu && $precisions = *bf16* ]]; then
    checked() {   # CHECKS
        TRAIN_GPT_CHECKS=$1 run bf16 "$work/$1" --max-steps 6 --val-every 3 --sample-every 3 --recompute block
    }
    checked none
    verdict $? "TRAIN_GPT_CHECKS=none: a run of 6 steps"
    for checks in memory,poison,races,order:1 order:2 order:3; do
        checked $checks && cmp <(without_times "$work/$checks/metrics.jsonl") <(without_times "$work/none/metrics.jsonl")
        verdict $? "TRAIN_GPT_CHECKS=$checks changes the run: $(tail -n 2 "$work/$checks.log")"
    done
fi

# The table of device memory is what the device reports, within 2%, before the first step and after the last one. A GPU
# also reports what is not the program's: code of kernels and libraries, loaded when first used, and memory in pieces of
# 2 MiB. So there two runs are compared, of 8 and of 512 sequences at once: what the larger one takes more is its table's,
# within 2% and 32 MiB for the kernels that the libraries have chosen for it alone. (MEMORY says which of the two.)
memory_run() {   # PRECISION SEQUENCES ARGUMENTS...: "table device" in MiB at the start, then at the end
    local out=$work/memory-$2
    rm -rf "$out"
    run "$1" "$out" --layers 3 --channels 128 --micro-batch "$2" --total-batch $(($2 * 64)) --max-steps 2 --warmup 0 \
        --val-every 1 --val-max-batches "$2" --sample-every 1 "${@:3}" >&2 &&
        awk '/^  sum / { table[1] = $2 } /^  the device reports/ { device[1] = $4 }
            /^device memory at the end/ { table[2] = $8; device[2] = $13 }
            END { for (i = 1; i <= 2; i++) print table[i] + 0, device[i] + 0 }' "$out.log"
}
memory() {   # PRECISION ARGUMENTS...
    if [ "${MEMORY:-$device}" = cpu ]; then
        memory_run "$1" 8 "${@:2}" | awk '{ print $1, "MiB,", $2, "MiB reported"
            if (!($1 > 0 && $2 > 0.98 * $1 && $2 < 1.02 * $1)) bad = 1 } END { exit bad || NR != 2 }'
    else
        local large small   # one after the other: the device reports what all take
        large=$(memory_run "$1" 512 "${@:2}") && small=$(memory_run "$1" 8 "${@:2}") || return 1
        paste -d' ' <(echo "$large") <(echo "$small") | awk '{
            more = $1 - $3; found = $2 - $4; print more, "MiB more,", found, "MiB more reported"
            if (!(more > 100 && found > 0.98 * more - 32 && found < 1.02 * more + 32)) bad = 1 } END { exit bad || NR != 2 }'
    fi
}
for settings in "bf16 --attention own" "bf16 --attention library --recompute block" "bf16 --recompute none -w 0" \
    "bf16 --grad-dtype bf16 --recompute gelu+norm" "fp32 --attention own --recompute block" "fp32 --recompute none"; do
    [[ " $precisions " = *" ${settings%% *} "* ]] || continue
    memory $settings
    verdict $? "$settings: the memory table is not what the device reports"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
