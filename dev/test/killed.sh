#!/usr/bin/env bash
# kill -9 of a random rank of a 4-process run, at random moments, KILLS times (default 200): every time the others end with
# 75 (resumable), the run goes on from what is there, and what it ends with is an undisturbed run's, byte for byte. Where a
# run ends before so many kills, another one begins. SEED chooses the moments.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
kills=${KILLS:-200} RANDOM=${SEED:-1}

seq 1 4000 >"$work/numbers.txt"
"$tokenize" --tokenizer bytes --quiet --output "$work/data" --val-tokens 2000 "$work/numbers.txt" || exit 70
train() {   # FOLDER
    exec scripts/launch.sh -n 4 -g 20 "$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" \
        --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --total-batch 256 --max-steps "${STEPS:-60}" \
        --lr 1e-2 --weight-decay 0.1 --val-every 20 --val-max-batches 4 --sample-every 0 --tp 2 --zero 1 --log-every 1 \
        --checkpoint-every 2 --keep-checkpoints 3 --resume 1 --output-dir "$1" >>"$1.log" 2>&1
}
state() {   # FOLDER: all that its newest checkpoint holds
    (cd "$1"/step_*"${STEPS:-60}" && sha256sum ./* && cd .. && without_times metrics.jsonl | sha256sum)
}
(train "$work/whole")
verdict $? "the undisturbed run: $(tail -n 3 "$work/whole.log")"
expected=$(state "$work/whole")

done_=0 finished=0 codes=
while [ "$done_" -lt "$kills" ]; do
    [ "$failed" -eq 0 ] || break
    out=$work/killed-$finished
    train "$out" & run=$!
    # from the start-up of its ranks to some steps later
    sleep "$((RANDOM % 3)).$((RANDOM % 10))$((RANDOM % 10))"
    mapfile -t ranks < <(pgrep -P "$run" -f "$train_gpt")
    victim=${ranks[$((RANDOM % (${#ranks[@]} > 0 ? ${#ranks[@]} : 1)))]:-}
    [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null && done_=$((done_ + 1))
    wait "$run"
    code=$?
    codes="$codes $code"
    if [ "$code" -eq 0 ]; then
        [ "$(state "$out")" = "$expected" ]
        verdict $? "run $finished, killed until kill $done_, ends as the undisturbed one"
        rm -rf "$out"
        finished=$((finished + 1))
    elif [ "$code" -ne 75 ]; then
        verdict 1 "kill $done_: exit code $code, expected 75: $(tail -n 5 "$out.log")"
    fi
done
out=$work/killed-$finished
[ -e "$out" ] && { (train "$out"); verdict $? "the run goes on to its end after kill $done_: $(tail -n 3 "$out.log")"; }
[ -e "$out" ] && { [ "$(state "$out")" = "$expected" ]; verdict $? "killed until kill $done_, the run ends as the undisturbed one"; }
echo "$done_ kills in $((finished + 1)) runs; exit codes:$(tr ' ' '\n' <<<"$codes" | sort | uniq -c | sed -nE 's/ *([0-9]+) ([0-9]+)/ \1 x \2/p' | tr '\n' ',')"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
