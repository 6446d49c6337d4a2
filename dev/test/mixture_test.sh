#!/usr/bin/env bash
# Mixtures of sources from outside: a run that is cut and resumed with other weights, on another layout, reads what the
# uncut run reads that has them in a schedule; losses by source; what is refused. llmc/data/mixture_test.cpp has the rule.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
launch=$(realpath scripts/launch.sh)
cd "$work" || exit 70
for source in web code wiki; do
    for i in $(seq 1 300); do echo "$source: line $i, number $((i * 7919 % 1000)) of this source"; done >$source.txt
    expect 0 "2000 validation tokens" "$tokenize" -q --tokenizer bytes --output data/$source --val-tokens 2000 $source.txt
done
set -f   # patterns are train_gpt's to expand
tiny=(--layers 1 --heads 2 --channels 32 --seq-len 16 --micro-batch 2 --total-batch 128 --max-steps 10 --val-every 5
    --val-max-batches 4 --sample-every 0)
first=web:0.7,code:0.2,wiki:0.1 then=web:1,code:1,wiki:0 last=web:1,code:0,wiki:8
printf '# step weights\n4 code:1,web:1\n7 web:1,wiki:8   # no code\n' >schedule
expect 0 "| web " "$train_gpt" --data $first "${tiny[@]}" --data-schedule schedule --checkpoint-every 1 --output-dir uncut

# ---- the same layout: the same bits; two ranks: the same samples
for ranks in 1 2; do
    run=("$launch" -n $ranks "$train_gpt" --output-dir cut-$ranks "${tiny[@]}" --checkpoint-every 1)
    expect 0 "step    3/10" "${run[@]}" --data $first --stop-after 3
    expect 0 "--train-data data/web/" "${run[@]}" --data $then --resume 1 --stop-after 6
    expect 0 "step   10/10" "${run[@]}" --data $last --resume 1
    for step in 3 6 8 10; do
        loader() { sed -n '/"loader"/,/^  },/p' "$1/$(printf 'step_%08d' $step)/run.json"; }
        check "$ranks ranks, step $step: sample ids" diff <(loader uncut) <(loader cut-$ranks)
    done
done
check "losses of the cut run, and by source" diff <(without_times uncut/metrics.jsonl) <(without_times cut-1/metrics.jsonl)
check "a validation line by source" grep -qE '^\{"step":5,"val_loss":[0-9.]+,"val_loss_of":\{"web":[0-9.]+,"code":[0-9.]+,"wiki":[0-9.]+\}\}$' uncut/metrics.jsonl

# ---- what a step reads: from a schedule, and from a run whose weights were changed on the way
samples() { "$train_gpt" data "$@" --samples 9 2>/dev/null; }
samples --data $first "${tiny[@]}" --data-schedule schedule >of_schedule
check "8 samples" [ "$(grep -c '^step 9, sample ' of_schedule)" = 8 ]
check "their text" grep -q 'source' of_schedule
check "samples of a run's folder" diff of_schedule <(samples --resume 1 --output-dir cut-1)
expect 64 "train_gpt data without --samples" "$train_gpt" data --data $first

# ---- a source that is added, and what is refused
expect 0 "step   11/11" "$train_gpt" --data $last --resume 1 --output-dir cut-1 "${tiny[@]}" --max-steps 11
expect 65 "read 32 samples of web, which --train-data does not name" "$train_gpt" --data code:1,wiki:1 --resume 1 \
    --output-dir uncut "${tiny[@]}" --data-schedule '' --max-steps 12
expect 65 "read a mixture, --train-data is one source" "$train_gpt" --data web --resume 1 --output-dir uncut "${tiny[@]}" \
    --data-schedule '' --max-steps 12
expect 64 "web has no weight, others of the list have" "$train_gpt" --data code:1,web "${tiny[@]}"
expect 64 "--data-schedule schedule: --train-data is one source" "$train_gpt" --data web --data-schedule schedule "${tiny[@]}"
echo '4 books:1' >schedule
expect 65 "schedule: line 1: --train-data has no source books" "$train_gpt" --data $first --data-schedule schedule "${tiny[@]}"
expect 74 "--train-data wiki data/wiki/none*.bin" "$train_gpt" --train-data 'data/web/*train*.bin:1,data/wiki/none*.bin:1' \
    --val-data 'data/web/*val*.bin' "${tiny[@]}"
expect 0 "  code: val loss " "$train_gpt" evaluate --model uncut --data $first --val-max-batches 2

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
