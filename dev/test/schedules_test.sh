#!/usr/bin/env bash
# What changes while a run goes on, or is kept beside it: batches and lengths by steps, learning rates that follow, the average of
# weights, branches of a wsd run. Each of them cut and resumed is the uncut run, and what is meaningless is refused.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

numbers_as_data 4000 2000
shape=(--train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 --heads 2 --channels 32 --seq-len 32
    --micro-batch 2 --max-steps 20 --lr 1e-2 --warmup 3 --final-lr-frac 0 --val-every 5 --val-max-batches 4 --sample-every 0)
train() {   # FOLDER OPTIONS...
    ${run_as:-} "$train_gpt" "${shape[@]}" --output-dir "$work/$1" "${@:2}" >>"$work/$1.log" 2>&1
}
of_steps() { sed -nE "/\"loss\":/s/.*\"$2\":([-0-9.e+]+).*/\1/p" "$work/$1/metrics.jsonl"; }   # FOLDER KEY
same() { cmp <(without_times "$work/$1/metrics.jsonl") <(without_times "$work/$2/metrics.jsonl"); }
same_state() {   # FOLDER FOLDER: of the last step, to the bit
    local file
    for file in "$work/$1"/step_00000020/{model,optimizer}-*.safetensors; do
        cmp "$file" "$work/$2/step_00000020/$(basename "$file")" || return 1
    done
}

# cut NAME OPTIONS...: 20 steps at once, and cut after 7 and 12
cut() {
    local name=$1
    shift
    train "$name" "$@" && train "$name-cut" --stop-after 7 "$@" && train "$name-cut" --resume --stop-after 12 && train "$name-cut" --resume
    verdict $? "$name: runs finish $(tail -n 3 "$work/$name.log" "$work/$name-cut.log")"
    same "$name" "$name-cut" && same_state "$name" "$name-cut"
    verdict $? "$name: resumed equals uncut"
}
growing=(--total-batch 384 --batch-schedule 4:768,10:384,13:1152)
cut batches "${growing[@]}" --lr-batch 768 --lr-scaling linear --ema 0.9
cut wsd "${growing[@]}" --schedule wsd --decay-steps 8 --ema 0.99 --master-weights 0 --optimizer muon
run_as="scripts/launch.sh -n 3" cut ranks "${growing[@]}" --ema 0.9 --zero 3

cut lengths --total-batch 384 --batch-schedule 10:768 --seq-len-schedule 1:8,6:16,13:32 --schedule constant
run_as="scripts/launch.sh -n 2" cut "lengths-cp" --total-batch 384 --batch-schedule 10:768 --seq-len-schedule 1:8,6:16,13:32 --schedule constant --cp 2
run_as="scripts/launch.sh -n 2" cut "lengths-tp" --total-batch 384 --batch-schedule 10:768 --seq-len-schedule 1:8,6:16,13:32 --schedule constant --tp 2

# a sequence that is cut is several short ones, to the bit; ranks that share it see the same
one_batch=(--overfit-single-batch 1 --total-batch 128 --val-every 0)
train pieces "${one_batch[@]}" --seq-len-schedule 1:8 && train short "${one_batch[@]}" --seq-len 8 --micro-batch 8 --seq-len-schedule '' &&
    train whole "${one_batch[@]}" && train late "${one_batch[@]}" --seq-len-schedule 21:8
[ -n "$(of_steps pieces loss)" ] && [ "$(of_steps pieces loss)" = "$(of_steps short loss)" ]
verdict $? "cut sequences are short ones: $(of_steps pieces loss | tail -n 1) $(of_steps short loss | tail -n 1)"
[ "$(of_steps whole loss)" != "$(of_steps short loss)" ] && [ "$(of_steps whole loss)" = "$(of_steps late loss)" ]
verdict $? "whole ones are others, until the step that cuts them"
for layout in cp tp; do
    paste <(of_steps lengths loss) <(of_steps "lengths-$layout" loss) |
        awk '{ d = $1 / $2 - 1; if (d < -2e-3 || d > 2e-3) exit 1; n++ } END { exit n != 20 }'
    verdict $? "$layout ranks cut them alike: $(paste <(of_steps lengths loss) <(of_steps "lengths-$layout" loss) | tail -n 1)"
done

# the learning rate follows the batch: linear at 768 tokens halves, keeps, and multiplies by 1.5 that of a run without
train plain --total-batch 768 --schedule constant
train follows "${growing[@]}" --schedule constant --lr-batch 768 --lr-scaling linear
[ "$(of_steps plain lr | sort -u)" = 0.00999999978 ]
verdict $? "learning rates without: $(of_steps plain lr | sort -u)"
paste <(of_steps follows lr) <(for i in 1 1 1 2 2 2 2 2 2 1 1 1 3 3 3 3 3 3 3 3; do echo $i; done) |
    awk '{ d = $1 - 0.005 * $2; if (d < -1e-9 || d > 1e-9) exit 1; n++ } END { exit n != 20 }'
verdict $? "learning rates that follow: $(of_steps follows lr | tr '\n' ' ')"
grep -q -- "--batch-schedule *| 4:768,10:384,13:1152" "$work/follows.log" && grep -q "LR follows the batch *| linear, 1 at 768 tokens" "$work/follows.log"
verdict $? "the table of settings says it"
# a larger step has the mean loss of the smaller ones that it stands for
train still "${growing[@]}" --lr 0 --val-every 0 && train small --total-batch 384 --lr 0 --val-every 0
paste <(of_steps still loss | head -n 9) <(of_steps small loss | awk 'NR <= 3 { print; next } NR % 2 == 0 { last = $1; next } { print (last + $1) / 2 }' | head -n 9) |
    awk '{ d = $1 / $2 - 1; if (d < -1e-6 || d > 1e-6) exit 1; n++ } END { exit n != 9 }'
verdict $? "losses are means over all tokens of a step: $(of_steps still loss | head -n 9 | tr '\n' ' ')"

# samples go on without a gap
samples() { "$train_gpt" data "${shape[@]}" "$@" | grep '^step' | sed 's/.*: epoch/epoch/'; }
cmp <(for i in 3 4 5; do samples "${growing[@]}" --samples $i; done) <(for i in 3 4 5 6 7; do samples --total-batch 384 --samples $i; done)
verdict $? "samples of steps that grow are those of steps that do not"

# a run that is resumed with other batches: a step is shown as it was read, whichever checkpoints are left
train turned --total-batch 384 --stop-after 4 && train turned --resume --total-batch 768 --stop-after 8 &&
    train turned --resume --total-batch 384 --stop-after 10
verdict $? "runs with other batches finish: $(tail -n 3 "$work/turned.log")"
for step in {1..14}; do samples --total-batch 384 --samples $step; done >"$work/in-order"
all_steps() { for step in {1..10}; do samples --resume --output-dir "$work/turned" --samples $step; done; }
cmp "$work/in-order" <(all_steps)
verdict $? "samples before and after a resume with another batch"
[ "$(samples --resume --output-dir "$work/turned" --samples 4 | wc -l) $(samples --resume --output-dir "$work/turned" --samples 5 | wc -l)" = "12 24" ]
verdict $? "a step has as many samples as its start gave it"
tr -d ' \n' <"$work/turned/step_00000010/run.json" | has '"index":168'   # 4 * 12 + 4 * 24 + 2 * 12
verdict $? "the loader has read so many: $(grep -o '"loader.*' "$work/turned/step_00000010/run.json" | head -c 200)"
rm -r "$work/turned/step_00000004"
cmp "$work/in-order" <(all_steps)
verdict $? "without a checkpoint between the batches too"
rm -r "$work/turned"/step_*
cmp "$work/in-order" <(all_steps)
verdict $? "without any checkpoint too"

# without --total-batch a step has a micro-batch of each rank that has other samples: 3, then 2 of 4 processes, then 1
run_as="scripts/launch.sh -n 3" train counted --stop-after 4 && run_as="scripts/launch.sh -n 4" train counted --resume --tp 2 --stop-after 8 &&
    train counted --resume --tp 1 --total-batch -1 --stop-after 10
verdict $? "runs without --total-batch finish: $(tail -n 3 "$work/counted.log")"
counted_steps() { for step in {1..10}; do samples --resume --output-dir "$work/counted" --samples $step; done; }
counted_in_order() { for step in {1..22}; do samples --total-batch 64 --samples $step; done; }   # 4 * 3 + 4 * 2 + 2 * 1
cmp <(counted_in_order) <(counted_steps)
verdict $? "samples of steps that the number of ranks makes: $(counted_steps | wc -l), expected 44"
tr -d ' \n' <"$work/counted/step_00000010/run.json" | has '"index":44'
verdict $? "the loader has read so many: $(grep -o '"loader.*' "$work/counted/step_00000010/run.json" | head -c 200)"
rm -r "$work/counted"/step_*
cmp <(counted_in_order) <(counted_steps)
verdict $? "without any checkpoint too: $(counted_steps | wc -l)"

# the average: a run's own reader, an export, and an average that begins later
value_of() { "$train_gpt" evaluate --val-data "$work/data/*val*.bin" --seq-len 32 --micro-batch 2 "$@" 2>&1 | sed -nE 's/.*val loss ([0-9.]+) .*/\1/p'; }
model=$(value_of --model "$work/batches") average=$(value_of --model "$work/batches" --weights ema)
[ -n "$average" ] && [ "$model" != "$average" ]
verdict $? "the average of the weights has a loss of its own: $model, $average"
"$train_gpt" export --model "$work/batches" --weights ema --output "$work/exported" >"$work/export.log" 2>&1 &&
    [ "$(value_of --model "$work/exported")" = "$average" ]
verdict $? "exported and evaluated it is the same: $(tail -n 2 "$work/export.log")"
[ "$(run_as='' scripts/launch.sh -n 2 "$train_gpt" evaluate --val-data "$work/data/*val*.bin" --seq-len 32 --micro-batch 2 --tp 2 \
    --model "$work/batches" --weights ema 2>&1 | sed -nE 's/.*val loss ([0-9.]{5}).*/\1/p')" = "${average:0:5}" ]
verdict $? "two ranks of tp evaluate the average"
train later --total-batch 768 --stop-after 10 && train later --resume --ema 0.5 && [ -n "$(value_of --model "$work/later" --weights ema)" ]
verdict $? "an average begins with the weights of a run that is resumed: $(tail -n 2 "$work/later.log")"
expect 65 "holds no average of the weights" "$train_gpt" evaluate --val-data "$work/data/*val*.bin" --seq-len 32 --model "$work/plain" --weights ema
expect 64 "has random weights" "$train_gpt" evaluate --val-data "$work/data/*val*.bin" --model d12 --weights ema

# a branch of a wsd run decays from where it leaves; the run itself is not touched
train stem --total-batch 384 --schedule wsd --checkpoint-every 5 --max-steps 40 --stop-after 15
before=$(cd "$work/stem" && find . -type f -exec md5sum {} + | sort)
"$train_gpt" --branch-from "$work/stem/step_00000010" --output-dir "$work/branch" --max-steps 15 --decay-steps 5 >"$work/branch.log" 2>&1
verdict $? "a branch: $(tail -n 3 "$work/branch.log")"
[ "$(of_steps branch lr | head -n 1)" = "$(of_steps stem lr | sed -n 11p)" ] && [ "$(of_steps branch loss | head -n 1)" = "$(of_steps stem loss | sed -n 11p)" ] &&
    [ "$(of_steps branch lr | wc -l)" -eq 5 ] && awk '$1 >= last && NR > 1 { exit 1 } { last = $1 }' <(of_steps branch lr)
verdict $? "its first step is the run's, then it decays: $(of_steps branch lr | tr '\n' ' ')"
[ "$before" = "$(cd "$work/stem" && find . -type f -exec md5sum {} + | sort)" ]
verdict $? "the run that it left is as before"
branch() { "$train_gpt" --branch-from "$work/stem/step_00000010" --output-dir "$work/cut" --max-steps 15 --decay-steps 5 "$@" >>"$work/cut.log" 2>&1; }
branch --stop-after 12 && "$train_gpt" --resume 1 --output-dir "$work/cut" >>"$work/cut.log" 2>&1 && cmp <(of_steps cut loss) <(of_steps branch loss)
verdict $? "cut and resumed it is the same: $(tail -n 3 "$work/cut.log")"
"$train_gpt" --branch-from "$work/stem/" --output-dir "$work/newest" --max-steps 17 >"$work/newest.log" 2>&1 && grep -q "branching off from .*step_00000015" "$work/newest.log"
verdict $? "of a folder the newest checkpoint: $(tail -n 3 "$work/newest.log")"

# what is refused
refused() { expect 64 "$1" "$train_gpt" "${shape[@]}" "${@:2}"; }
refused "'x' is not STEP:NUMBER" --batch-schedule x
refused "step 3 does not come after step 5" --batch-schedule 5:128,3:256
refused "step 1 does not come after step 1" --batch-schedule 1:128
refused "--batch-schedule: 100: expected a multiple" --total-batch 128 --batch-schedule 5:100
refused "sequences of --seq-len 32 cannot be cut into 12 tokens" --seq-len-schedule 1:12
refused "sequences of --seq-len 32 cannot be cut into 64 tokens" --seq-len-schedule 5:64
refused "expected sequences of a multiple of 2 x cp = 8 tokens" --seq-len-schedule 5:4 --cp 4
refused "--lr-batch 128 without --lr-scaling" --lr-batch 128 --lr-scaling none
refused "--decay-steps 3 without --schedule wsd" --decay-steps 3
refused "expected at most --max-steps less --warmup = 17" --schedule wsd --decay-steps 18
refused "stem without --output-dir" --branch-from "$work/stem"
expect 65 "there is no checkpoint in it that can be used" "$train_gpt" "${shape[@]}" --branch-from "$work/data" --output-dir "$work/none"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
