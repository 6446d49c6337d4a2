#!/usr/bin/env bash
# scripts/sweep.sh on a tiny model: its runs, table and picture; that what is done stays, that it goes on after it was cut, and
# what it refuses.
source "$(dirname "$0")/common.sh"
loss_curve=$(realpath -m "${LOSS_CURVE:-build/$device$variant/loss_curve}")
needs "$train_gpt" "$tokenize" "$loss_curve"
export TRAIN_GPT=$train_gpt LOSS_CURVE=$loss_curve

numbers_as_data 4000 2000
options=(--train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 1 --heads 2 --channels 32 --seq-len 32
    --micro-batch 4 --max-steps 12 --val-every 4 --val-max-batches 8 --sample-every 0 --checkpoint-every 4)
row() { sed -n "$(($2 + 2))p" "$work/$1/table.md"; }

expect 0 "NAME=VALUE,VALUE" scripts/sweep.sh --help
TARGET=9 expect 0 "table: $work/all/table.md" scripts/sweep.sh "$work/all" optimizer=adamw,sgd lr=1e-3,1e-2 seed=1,2 -- "${options[@]}"
[ "$(find "$work/all" -name metrics.jsonl | wc -l)" -eq 8 ] && [ "$(grep -c '^| optimizer-.* | 2 | [0-9.]* +- ' "$work/all/table.md")" -eq 4 ]
verdict $? "eight runs in four rows: $(cat "$work/all/table.md")"
row all 1 | has -E '^\| optimizer-adamw_lr-1e-2 \| 2 \| .* \| (4|8|12) \((4|8|12) to (4|8|12)\) \|$'
verdict $? "the best first, with the steps to the target: $(row all 1)"
mean=$(sed -nE 's/.*"step":12,"val_loss":([0-9.]+).*/\1/p' "$work"/all/optimizer-adamw_lr-1e-2_seed-?/metrics.jsonl |
    awk '{ sum += $1 } END { printf "%.4f", sum / NR }')
row all 1 | has -F "| $mean +-"
verdict $? "its mean is that of the last validations, $mean: $(row all 1)"
[ "$(grep -c "class='mean'" "$work/all/losses.svg")" -ge 4 ]
verdict $? "the picture has a line for each row"

find "$work/all" -type f -name metrics.jsonl -exec stat -c '%Y %n' {} + | sort >"$work/before"
expect 0 "done before" scripts/sweep.sh "$work/all" optimizer=adamw,sgd lr=1e-3,1e-2 seed=1,2 -- "${options[@]}"
find "$work/all" -type f -name metrics.jsonl -exec stat -c '%Y %n' {} + | sort | cmp - "$work/before"
verdict $? "what is done stays"
expect 0 "optimizer-lamb_lr-1e-2_seed-1: done" scripts/sweep.sh "$work/all" optimizer=lamb lr=1e-2 seed=1 -- "${options[@]}"
[ "$(grep -c '^| optimizer-' "$work/all/table.md")" -eq 5 ]
verdict $? "another command adds a row"

# cut in its first run by a signal, then continued
slow=("${options[@]}" --max-steps 600 --checkpoint-every 0)
for try in {1..20}; do   # again where the signal came after its last step
    rm -rf "$work/cut"
    scripts/sweep.sh "$work/cut" seed=1,2 -- "${slow[@]}" >"$work/cut.log" 2>&1 & pid=$!
    eventually $pid grep -qs '"step":3,' "$work/cut/seed-1/metrics.jsonl"
    kill -TERM $pid
    wait $pid
    code=$?
    [ -e "$work/cut/seed-2" ] || break
done
[ $code -eq 75 ] && [ ! -e "$work/cut/seed-2" ] && [ ! -e "$work/cut/seed-1/sweep" ]
verdict $? "a signal stops run and sweep: $(cat "$work/cut.log")"
expect 0 "seed-2: done" scripts/sweep.sh "$work/cut" seed=1,2 -- "${slow[@]}"
losses_of() { sed -nE 's/^\{"step":([0-9]+),"((val_)?loss)":([0-9.e+-]+).*/\1 \2 \4/p' "$work/cut/seed-$1/metrics.jsonl"; }
mkdir "$work/all_seeds" "$work/all_seeds/all"
paste -d' ' <(losses_of 1) <(losses_of 2) | awk '{ printf "{\"step\":%d,\"%s\":%.8f}\n", $1, $2, ($3 + $6) / 2 }' >"$work/all_seeds/all/metrics.jsonl"
"$loss_curve" "$work/all_seeds/all" -o "$work/mean.svg" && cmp "$work/mean.svg" "$work/cut/losses.svg"
verdict $? "the picture draws the mean of the seeds"
expect 0 "seed-1: done" scripts/sweep.sh "$work/uncut" seed=1 -- "${slow[@]}"
cmp <(records "$work/cut/seed-1") <(records "$work/uncut/seed-1")
verdict $? "the run that was cut is the uncut one"

expect 64 "expected FOLDER NAME=VALUE" scripts/sweep.sh "$work/none"
expect 64 "the folder comes first" scripts/sweep.sh lr=1
expect 64 "lr=1,,2: a value is empty" scripts/sweep.sh "$work/none" lr=1,,2 -- "${options[@]}"
expect 64 "the sweep itself says where runs are" scripts/sweep.sh "$work/none" lr=1 -- --output-dir here
expect 64 "--no-such" scripts/sweep.sh "$work/none" lr=1e-3 -- "${options[@]}" --no-such 1
TARGET=low expect 64 "TARGET=low: expected a loss" scripts/sweep.sh "$work/none" lr=1e-3 -- "${options[@]}"
TRAIN_GPT=$work/nothing expect 69 "there is no $work/nothing" scripts/sweep.sh "$work/none" lr=1e-3 -- "${options[@]}"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
