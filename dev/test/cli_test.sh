#!/usr/bin/env bash
# The command line from outside: a table of (exit code, what the message must contain, arguments).
#
# TRAIN_GPT and TOKENIZE name the programs to test; by default those of the CPU build.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

program=("$train_gpt")   # of expect: its arguments follow there

# le16 and le32 NUMBER...: little-endian bytes
le16() { for n in "$@"; do printf "\\x$(printf %02x $((n & 255)))\\x$(printf %02x $((n >> 8 & 255)))"; done; }
le32() { for n in "$@"; do le16 $((n & 65535)) $((n >> 16 & 65535)); done; }
# shard FILE MAGIC VERSION COUNT TOKENS...: a token file with that header
shard() {
    local file=$1
    { le32 "$2" "$3" "$4" && head -c 1012 /dev/zero && le16 "${@:5}"; } >"$file"
}

numbers_as_data 3000 3000
data=(--train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin")
tiny=(--layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --max-steps 2 --val-max-batches 2 --sample-every 0)

# ---- what works
expect 0 "Shape of a step:" --help
expect 0 "--pp-schedule" --help
expect 0 "llama:8B" --help   # sizes of every kind
expect 0 "qwen3:600M" --help
expect 0 "lr=3e-04" --print-config
expect 0 "step    2/2" "${data[@]}" "${tiny[@]}"
expect 0 "stopped after step 1 of 2" "${data[@]}" "${tiny[@]}" --stop-after 1
expect 0 "generating:" "${data[@]}" "${tiny[@]}" --sample-every 2 --sample-tokens 4
expect 0 "val loss" "${data[@]}" "${tiny[@]}" -b 3 -m 1 -x 1
"$train_gpt" "${data[@]}" "${tiny[@]}" --lr 0.001 --print-config >"$work/run.cfg"
expect 0 "step    2/2" --config "$work/run.cfg"
expect 0 "lr=0.5" --config "$work/run.cfg" --lr 0.5 --print-config

# ---- the same weights in every form give the same loss: last validation, exported file, checkpoint folder
val_loss() { sed -nE 's/.*"val_loss":([0-9.]+).*/\1/p' "$1/metrics.jsonl"; }
expect 0 "val loss" "${data[@]}" "${tiny[@]}" -o "$work/a" -n 2 --export-llmc "$work/a.bin"
for model in "$work/a.bin" "$work/a/step_00000002"; do
    rm -rf "$work/b"
    expect 0 "$model" "${data[@]}" "${tiny[@]}" --layers 0 --heads 0 --channels 0 --model "$model" -o "$work/b" --max-steps 1
    [ "$(val_loss "$work/a" | tail -n 1)" = "$(val_loss "$work/b" | head -n 1)" ]
    verdict $? "the first validation loss of $model: $(val_loss "$work/b" | head -n 1), saved at $(val_loss "$work/a" | tail -n 1)"
done

# ---- a loss that is not finite: reported, the update skipped, null in the metrics
# the first weight becomes NaN (bf16 ff7f, fp32 ffffff7f; both end in 7f with an exponent of all ones)
cp "$work/a.bin" "$work/nan.bin"
printf '\xff\x7f\xff\x7f' | dd of="$work/nan.bin" bs=1 seek=1024 conv=notrunc 2>/dev/null
expect 0 "not finite, update skipped" "${data[@]}" "${tiny[@]}" --layers 0 --heads 0 --channels 0 --model "$work/nan.bin" -o "$work/nan"
grep -q '"step":2,"loss":null,"grad_norm":null' "$work/nan/metrics.jsonl"
verdict $? "null in metrics.jsonl"

# ---- multiple-choice questions: two, of which the first is right when "1" is likelier than "x" after "1"
{ le32 20240522 1 2 26 && head -c 1008 /dev/zero &&
    le16 65535 26 0 0 2 3 49 50 49 1 49 1 120 65535 26 1 1 2 3 49 50 49 1 49 1 120; } >"$work/questions.bin"
expect 0 "HellaSwag: 1/2 = 0.500000" "${data[@]}" "${tiny[@]}" --hellaswag 1 --hellaswag-data "$work/questions.bin"
expect 0 "HellaSwag: 1/2 = 0.500000" "${data[@]}" "${tiny[@]}" --evaluate "hellaswag=$work/questions.bin" -o "$work/asked"
grep -q '"hellaswag":0.5,"hellaswag_sum":0.5}' "$work/asked/metrics.jsonl"
verdict $? "--evaluate in metrics.jsonl: $(tail -n 1 "$work/asked/metrics.jsonl")"
# LAMBADA: a text whose last word is one token, and one with a word of two
{ le32 20240522 1 2 22 0 0 5 && head -c 996 /dev/zero &&
    le16 65535 20 0 0 1 2 49 50 1 49 65535 22 1 0 1 2 49 50 2 49 120; } >"$work/lambada.bin"
expect 0 "LAMBADA: 0/2 = 0.000000 | perplexity " "${data[@]}" "${tiny[@]}" -o "$work/words" \
    --evaluate "lambada=$work/lambada.bin,hellaswag=$work/questions.bin"
grep -qE '"lambada":0,"lambada_perplexity":[0-9.e+]+\}' "$work/words/metrics.jsonl" && grep -q '"hellaswag":0.5,"hellaswag_sum":0.5}' "$work/words/metrics.jsonl"
verdict $? "two evaluations in metrics.jsonl: $(tail -n 3 "$work/words/metrics.jsonl")"
# both sets of ARC, as version 2: "1" is likelier than "x" after "1", but not per character where "x" is said to have a hundred
for set in "3 easy 1 1" "6 challenge 1 100"; do
    read -r source name right wrong <<<"$set"
    { le32 20240522 2 1 56 0 0 "$source" && head -c 996 /dev/zero &&
        le32 4294967295 56 0 0 2 2 49 50 "$right" 1 49 "$wrong" 1 120; } >"$work/$name.bin"
done
for command in "${data[*]} ${tiny[*]} -o $work/arc --tensorboard 1" "evaluate --model $work/words --seq-len 32"; do
    set -f
    expect 0 "ARC easy: 1/1 = 1.000000 by loss per character | 1/1 = 1.000000 by sum" $command \
        --evaluate "arc_easy=$work/easy.bin,hellaswag=$work/questions.bin,lambada=$work/lambada.bin,arc_challenge=$work/challenge.bin"
    set +f
    grep -qF "ARC challenge: 0/1 = 0.000000 by loss per character | 1/1 = 1.000000 by sum" "$work/out"
    verdict $? "the challenge beside it, $command"
    grep -qF "HellaSwag: 1/2 = 0.500000 by loss per token | 1/2 = 0.500000 by sum" "$work/out" && grep -qF "LAMBADA: 0/2 = 0.000000 | perplexity" "$work/out"
    verdict $? "four evaluations, $command"
done
grep -qF '"arc_challenge":0,"arc_challenge_sum":1}' "$work/arc/metrics.jsonl" && grep -qF '"arc_easy":1,"arc_easy_sum":1}' "$work/arc/metrics.jsonl"
verdict $? "both sets of ARC in metrics.jsonl: $(tail -n 4 "$work/arc/metrics.jsonl")"
for tag in arc_easy_sum arc_challenge_sum lambada_perplexity; do
    grep -qa "$tag" "$work/arc/events.out.tfevents.train_gpt"
    verdict $? "$tag in the event file"
done
grep -qF "scores_by_sum" "$work/arc/report.html" && grep -qF "lambada_perplexity" "$work/arc/report.html"
verdict $? "panels of evaluations in the report"
expect 0 "HellaSwag: 1/2 = 0.500000" evaluate --model "$work/words" --seq-len 32 --eval "hellaswag=$work/questions.bin"
expect 0 "HellaSwag: 1/2 = 0.500000" evaluate --model "$work/words" --seq-len 32 "--eval=hellaswag=$work/questions.bin"
printf 'eval = "hellaswag=%s"\n' "$work/questions.bin" >"$work/asked.cfg"   # the earlier name
expect 0 "HellaSwag: 1/2 = 0.500000" --config "$work/asked.cfg" "${data[@]}" "${tiny[@]}"
expect 65 "easy.bin: questions of ARC easy, expected ARC challenge" "${data[@]}" "${tiny[@]}" --evaluate "arc_challenge=$work/easy.bin"
expect 65 "lambada.bin: questions of LAMBADA, expected PIQA" "${data[@]}" "${tiny[@]}" --evaluate "piqa=$work/lambada.bin"
expect 74 "--evaluate arc_easy none.bin: open failed" "${data[@]}" "${tiny[@]}" --evaluate arc_easy=none.bin
expect 74 "--evaluate hellaswag none.bin: open failed" "${data[@]}" "${tiny[@]}" --evaluate hellaswag=none.bin
expect 64 "'winogrande' is no evaluation" "${data[@]}" "${tiny[@]}" --evaluate hellaswag,winogrande
expect 64 "hellaswag is asked for twice" "${data[@]}" "${tiny[@]}" --hellaswag 1 --evaluate hellaswag
expect 64 "Leave -lg out, and run" -lg 10
# ---- questions longer than the sequences: their contexts lose the left part, unless that is refused
lost="questions.bin: 2 of 2 questions are longer than --seq-len 2 and lose the left part of their contexts, 2 tokens in all, at most 1 of one"
expect 0 "warning: $work/$lost" "${data[@]}" "${tiny[@]}" -h 1 --hellaswag-data "$work/questions.bin" -t 2
expect 64 "--strict 1: $work/$lost; question 0 is the first" "${data[@]}" "${tiny[@]}" -h 1 --hellaswag-data "$work/questions.bin" -t 2 --strict 1
expect 0 "HellaSwag: 1/2" "${data[@]}" "${tiny[@]}" -h 1 --hellaswag-data "$work/questions.bin" -t 3 --strict 1
expect 0 "warning: $work/$lost" evaluate --model "$work/words" --seq-len 2 --eval "hellaswag=$work/questions.bin"
expect 64 "--strict 1: $work/$lost" evaluate --model "$work/words" --seq-len 2 --eval "hellaswag=$work/questions.bin" --strict 1
expect 64 "LAMBADA: question 1 has a completion of 2 tokens, --seq-len is 1" evaluate --model "$work/words" --seq-len 1 --eval "lambada=$work/lambada.bin"
expect 64 "sequences of 64 tokens do not fit a model of 32 positions" evaluate --model "$work/words" --seq-len 64 --eval "hellaswag=$work/questions.bin"
# ---- questions cost what they need, however many positions the model has
expect 0 "step    1/1" "${data[@]}" "${tiny[@]}" --positions rotary --seq-len 1024 --micro-batch 1 --max-steps 1 --val-every 0 -o "$work/many"
taken() { sed -nE 's/.*device memory: ([0-9.]+) MiB.*/\1/p' "$work/out"; }
expect 0 "HellaSwag: " evaluate --model "$work/many" --seq-len 64 --eval "hellaswag=$work/questions.bin"
needed=$(taken)
expect 0 "HellaSwag: " evaluate --model "$work/many" --eval "hellaswag=$work/questions.bin"
[ -n "$needed" ] && [ "$(taken)" = "$needed" ]
verdict $? "memory of short questions with 1,024 positions: $(taken) MiB, with 64: $needed"
expect 65 "magic number" "${data[@]}" "${tiny[@]}" -h 1 --hellaswag-data "$work/nan.bin"

# ---- outliers: from step 129 on, updates above a z-score are skipped
expect 0 "the gradient norm's z-score" "${data[@]}" "${tiny[@]}" --max-steps 140 --val-every 0 --skip-norm-z 0.01
expect 0 "step   80/80 | loss 0." "${data[@]}" "${tiny[@]}" --max-steps 80 --lr 0.01 --val-every 0 --overfit-single-batch

# ---- which attention runs
expect 0 "| attention             | own                " "${data[@]}" "${tiny[@]}" --attention own
expect 0 "| attention             | library (asked for: auto)" "${data[@]}" "${tiny[@]}"

# ---- wrong values: 64
expect 64 "--lr high: expected a number from 0 to 10" --lr high
expect 64 "--lr nan: expected a number" --lr nan
expect 64 "--micro-batch 0: expected an integer from 1" -b 0
expect 64 "--seq-len -5: expected an integer from 1" --seq-len -5
expect 64 "--max-steps 0: expected -1 or an integer from 1" -x 0
expect 64 "--schedule cosin: expected one of cosine|linear|constant|wsd" -k cosin
expect 64 "--warmup 20: expected at most --max-steps = 10" --warmup 20 -x 10
expect 64 "The nearest values that work are 96 and 128" "${data[@]}" "${tiny[@]}" -b 1 --total-batch 100
expect 64 "--warmupp: unknown option" --warmupp 3
expect 64 "--resume without --output-dir" --resume
expect 64 "holds checkpoints of a run, up to step 2" "${data[@]}" "${tiny[@]}" -o "$work/a"
expect 64 "--vocab-size 300: the model in $work/a.bin has 257 ids" "${data[@]}" "${tiny[@]}" --layers 0 --heads 0 --channels 0 --model "$work/a.bin" --vocab-size 300
expect 64 "started with --seed 42" "${data[@]}" "${tiny[@]}" -o "$work/a" --resume --seed 43
expect 64 "samples an epoch" "${data[@]}" "${tiny[@]}" -o "$work/a" --resume --train-data "$work/data/*val*.bin"
expect 65 "the run was of a model with" "${data[@]}" "${tiny[@]}" -o "$work/a" --resume --channels 64
expect 64 "Did you mean --warmup?" --warmupp 3
expect 64 "--lr: 1 required" --lr
expect 64 "--pp 2 x --cp 1 x --tp 2 = 4 ranks do not divide the 1 that were started" --tp 2 --pp 2
expect 64 "= 2 ranks do not divide the 1 that were started" --tp 2
expect 64 "expected one of 1f1b|interleaved|zb|gpipe|naive" --pp-schedule 2f2b
expect 0 "bubble 33.33% over the ideal, 25.00% of the time" --print-schedule text --pp 2 --total-batch 12288 -b 4 -t 1024
expect 64 "needs the address of rank 0" -pn 4
expect 64 "--process-rank 4 of --processes 4" -pn 4 -pr 4
expect 64 "expected one of auto|mpi|tcp|fs" -pi pmix
expect 64 "needs a folder that all ranks see" -pi fs -pn 2
expect 64 "Expected HOST:PORT" -pi tcp -ps :29500 -pn 2
expect 64 "--dp 3 does not fit" "${data[@]}" "${tiny[@]}" --dp 3
expect 69 "of 2 ranks these have not come within 1 s: 1" -pi tcp -ps "127.0.0.1:$(free_port)" -pn 2 --init-timeout 1
mkdir "$work/rendezvous"
expect 69 "of 2 ranks these have not come within 1 s: 1" -pi fs -pf "$work/rendezvous" -pn 2 --init-timeout 1
expect 69 "of 2 ranks these have not come within 1 s: 0" -pi fs -pf "$work/rendezvous" -pn 2 -pr 1 --init-timeout 1
expect 64 "expected all three of them or none" --layers 2
expect 64 "--heads" "${data[@]}" "${tiny[@]}" --heads 3
expect 64 "d12" "${data[@]}" --model gpt2:125M
expect 64 "1024" "${data[@]}" --model d12 --seq-len 2048
expect 64 "--warmup 5000" "${data[@]}" "${tiny[@]}" --max-steps -1 --warmup 5000
printf 'lr=0.1\nlearning-rate=3\n' >"$work/bad.cfg"
expect 64 "bad.cfg: line 2: --learning-rate: unknown option" --config "$work/bad.cfg"

# ---- files that are missing, unreadable or full: 74
expect 74 "--train-data $work/none*.bin: no file matches this pattern" "${tiny[@]}" --val-every 0 --train-data "$work/none*.bin"
expect 74 "--val-data $work/none*.bin: no file matches" "${tiny[@]}" "${data[@]}" --val-data "$work/none*.bin"
expect 74 "missing.bin: open failed: No such file" "${data[@]}" --model "$work/missing.bin"
expect 74 "missing.cfg" --config "$work/missing.cfg"
expect 74 "/proc/nothing" "${data[@]}" "${tiny[@]}" --output-dir /proc/nothing
mkdir "$work/full" && ln -s /dev/full "$work/full/metrics.jsonl"
expect 74 "metrics.jsonl: write failed: No space left on device" "${data[@]}" "${tiny[@]}" --output-dir "$work/full"

# ---- data that is not what it should be: 65
bad() {   # MESSAGE: what train_gpt says of $work/bad.bin
    expect 65 "$1" "${tiny[@]}" --vocab-size 257 --seq-len 4 --val-every 0 --train-data "$work/bad.bin"
}
: >"$work/bad.bin"
bad "bad.bin: byte 0: the file ends inside its header"
shard "$work/bad.bin" 20240326 1 8 1 2 3 4 5 6 7 8
bad "bad.bin: byte 0: magic number 20240326, expected 20240520"
shard "$work/bad.bin" 20240520 2 8 1 2 3 4 5 6 7 8
bad "bad.bin: byte 4: version 2, expected 1"
shard "$work/bad.bin" 20240520 1 0
bad "bad.bin: byte 8: token count 0"
shard "$work/bad.bin" 20240520 1 9 1 2 3 4 5 6 7 8
bad "makes a file of 1042 bytes, found 1040 bytes"
shard "$work/bad.bin" 20240520 1 8 1 2 3 4 5 6 257 8
bad "bad.bin: byte 1036: token 6 has id 257, expected 0 to 256"
shard "$work/bad.bin" 20240520 1 4 1 2 3 4
bad "has 4 tokens, expected at least --seq-len + 1 = 5"
shard "$work/bad.bin" 20240520 1 8 1 2 3 4 5 6 7 8
expect 0 "step    2/2" "${tiny[@]}" --vocab-size 257 --seq-len 4 --val-every 0 --train-data "$work/bad.bin"

printf '%s' "not a model at all, but longer than nothing" >"$work/model.bin"
expect 65 "model.bin: byte 0" "${data[@]}" --model "$work/model.bin"
mkdir "$work/folder"
expect 65 "this folder holds no config.json and no checkpoint" "${data[@]}" --model "$work/folder"

# ---- stopping: a signal lets the step at hand finish, then 75
"$train_gpt" "${data[@]}" "${tiny[@]}" --max-steps 1000000 --val-every 0 -o "$work/live" >"$work/live.log" 2>&1 &
pid=$!
eventually "$pid" grep -q "^step    2/" "$work/live.log"
expect 64 "another run is writing there (process $pid on" "${data[@]}" "${tiny[@]}" -o "$work/live" --resume
kill -USR1 "$pid"
wait "$pid"
[ $? -eq 75 ] && grep -qE "SIGUSR1 received: stopped after step [0-9]+ of 1000000$" "$work/live.log"
verdict $? "SIGUSR1 during training: $(tail -n 3 "$work/live.log")"

# ---- and during start-up: 75 at once, and the run can still be resumed. The program waits for its options from a pipe.
mkfifo "$work/pipe"
cp "$work/a/metrics.jsonl" "$work/before"
for signal in INT TERM USR1; do
    # what this script was started with does not count: a background job ignores SIGINT
    (exec env --default-signal=INT "$train_gpt" "${data[@]}" "${tiny[@]}" -o "$work/a" --resume --max-steps 4 --config "$work/pipe" >"$work/out" 2>&1) &
    pid=$!
    exec 3>"$work/pipe"   # goes on once the program has opened its end
    kill -$signal "$pid"
    (echo "lr=0.001" >&3)   # on its own: the program may have ended already, and a closed pipe ends who writes to it
    exec 3>&-
    wait "$pid"
    [ $? -eq 75 ] && grep -q "SIG$signal received during start-up" "$work/out" && ! grep -q "^step" "$work/out" &&
        cmp "$work/before" "$work/a/metrics.jsonl" && [ "$(cd "$work/a" && echo step_*)" = step_00000002 ]
    verdict $? "SIG$signal during start-up: $(tail -n 3 "$work/out")"
done
expect 0 "step    4/4" "${data[@]}" "${tiny[@]}" -o "$work/a" --resume --max-steps 4

# ---- what a killed run left unfinished is removed, and nothing else
mkdir "$work/a/step_00000003.tmp" "$work/a/step_3.tmp" "$work/a/notes.tmp" "$work/a/step_00000009.tmp.old"
echo x | tee "$work/a/step_00000003.tmp/model.safetensors" >"$work/a/step_00000005.tmp"
ls "$work/a" | grep -v '^step_00000003.tmp$' >"$work/kept"
expect 0 "removed $work/a/step_00000003.tmp, which a killed run left unfinished" "${data[@]}" "${tiny[@]}" -o "$work/a" --resume --max-steps 4
cmp "$work/kept" <(ls "$work/a")
verdict $? "only unfinished checkpoints are removed"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
