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
check "a validation line by source" grep -qE '^\{"step":5,"val_loss":[0-9.]+,"val_loss_of":\{"web":[0-9.]+,"code":[0-9.]+,"wiki":[0-9.]+\}[,}]' uncut/metrics.jsonl

# ---- what a step reads: from a schedule, and from a run whose weights were changed on the way
samples() { "$train_gpt" data "$@" --samples 9 2>/dev/null; }
samples --data $first "${tiny[@]}" --data-schedule schedule >of_schedule
check "8 samples" [ "$(grep -c '^step 9, sample ' of_schedule)" = 8 ]
check "their text" grep -q 'source' of_schedule
check "samples of a run's folder" diff of_schedule <(samples --resume 1 --output-dir cut-1)
expect 64 "train_gpt data without --samples or --inspect" "$train_gpt" data --data $first

# ---- what shards hold: text at any place, lengths of documents, what masks leave of attention
inside=("$train_gpt" data --train-data 'data/web/*train*.bin' --seq-len 64 --inspect)
expect 0 "token 40: data/web/" "${inside[@]}" 40
expect 0 "1 documents of " "${inside[@]}" 40
expect 0 "sequences of 64 tokens: --document-mask leaves 100.0% of attention" "${inside[@]}" 40
expect 64 "--inspect 900000000: --train-data has" "${inside[@]}" 900000000

# ---- a spike logs its samples, the very ones that `data` shows
"$train_gpt" --data $first "${tiny[@]}" --max-steps 135 --val-every 0 --skip-norm-z 0.01 >spikes 2>&1
spike=$(grep -oE 'data --samples [0-9]+' spikes | head -n 1 | grep -oE '[0-9]+')
told=$(grep -m 1 -oE 'what it read: .*' spikes | sed 's/what it read: //')
[ "$(tr ',' '\n' <<<"$told" | sed -E 's/^ *([a-z]+) ([0-9]+).*/\1 \2/')" = "$("$train_gpt" data --data $first "${tiny[@]}" --samples "${spike:-1}" 2>/dev/null |
    sed -nE 's/^step .*: ([a-z]+), epoch ([0-9]+),.*/\1 \2/p')" ] && [ "$(tr ',' '\n' <<<"$told" | wc -l)" = 8 ]
verdict $? "the samples of spike ${spike:-none}: $told"

# ---- documents that do not see each other: validation and `evaluate` agree, two ranks with one
for i in $(seq 1 60); do head -c $((i * i % 90 + 1)) web.txt >document$i.txt; done
expect 0 "60 documents" "$tokenize" -q --tokenizer bytes --output data/short --val-tokens 500 document{1..60}.txt
masked=(--data short "${tiny[@]}" --document-mask 1 --boundary-loss 0 --max-steps 3)
expect 0 "document mask: of this step's pairs" "$train_gpt" "${masked[@]}" --output-dir masked
val_loss=$(grep -oE '"val_loss":[0-9.]+' masked/metrics.jsonl | tail -n 1 | cut -c12-18)
expect 0 "val loss $val_loss" "$train_gpt" evaluate --model masked --data short --seq-len 16 --val-max-batches 4 \
    --document-mask 1 --boundary-loss 0
cp -r masked/step_00000003 alone && rm -f alone/tokenizer*   # the one beside the data says where documents begin
expect 0 "val loss $val_loss" "$train_gpt" evaluate --model alone --data short --seq-len 16 --val-max-batches 4 \
    --document-mask 1 --boundary-loss 0
for mask in 0 1; do
    expect 0 "step    1/1" "$train_gpt" --data short "${tiny[@]}" --document-mask $mask --seq-len 15 --total-batch 30 --max-steps 1
done
"$train_gpt" evaluate --model masked --data short --seq-len 16 --val-max-batches 4 >"$work/out" 2>&1
check "without the mask it is another" bash -c '! grep -q "val loss $1" "$0"' "$work/out" "$val_loss"
expect 0 "the rank with most has" "$launch" -n 2 "$train_gpt" "${masked[@]}" --cp 2 --output-dir shared
check "two ranks, the same losses" diff <(grep -oE '"(val_)?loss":[0-9.]{6}' masked/metrics.jsonl) \
    <(grep -oE '"(val_)?loss":[0-9.]{6}' shared/metrics.jsonl)
expect 64 "--boundary-loss 0 without --document-mask" "$train_gpt" --data short "${tiny[@]}" --boundary-loss 0
cp -r data/short bare && rm bare/tokenizer.bin
expect 64 "--document-mask 1: there is no tokenizer beside" "$train_gpt" --data bare/ "${tiny[@]}" --vocab-size 257 \
    --document-mask 1
expect 64 "--inspect: there is no tokenizer.bin" "$train_gpt" data --data bare/ --inspect 3

# ---- sequences of another length: a new epoch, which is said once, and read as ever from there on
echo '{"model_type":"gpt2","n_layer":1,"n_head":2,"n_embd":32,"n_positions":32,"vocab_size":257}' >config.json
turned=(--arch config.json "${tiny[@]:6}")   # whose positions are its own
expect 0 "step    4/4" "$train_gpt" --data $first "${turned[@]}" --max-steps 4 --output-dir longer
expect 0 "--seq-len 8: samples had 16 tokens until now: a new epoch begins" "$train_gpt" --data $first "${turned[@]}" \
    --seq-len 8 --max-steps 6 --resume 1 --output-dir longer
check "the new length is in the state" grep -q '"seq_len": 8' longer/step_00000006/run.json
expect 0 "step    7/7" "$train_gpt" --data $first "${turned[@]}" --seq-len 8 --max-steps 7 --resume 1 --output-dir longer
check "it begins once" bash -c '! grep -q "a new epoch begins" "$0"' "$work/out"

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
