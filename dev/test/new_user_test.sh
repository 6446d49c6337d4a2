#!/usr/bin/env bash
# A new user, who reads nothing but the README, and takes its commands from there: own text tokenized, trained, stopped by
# Ctrl-C, resumed, plotted, generated from, evaluated, exported. Each command runs in a pseudo-terminal as it stands, but
# for the folders' names, which are those of the user's own run, and for the number of steps (NEW_USER_STEPS: how many).
# It ends with what was typed, what was seen and how long it took.
#
# From nothing: dev/test/bare_machine.sh 'make deps && bash dev/test/new_user_test.sh', where it also builds.
# Alone: keys are typed while it trains.
began=$SECONDS
source "$(dirname "$0")/common.sh"
root=$PWD steps=${NEW_USER_STEPS:-30}
export TERM=xterm
if ! command -v script >/dev/null; then
    echo "SKIPPED a new user: no script (util-linux) for a pseudo-terminal"
    echo "0 passed, 0 failed"
    exit
fi

# The first command of the README's that has the words.
readme() {
    awk '/^```/ { inside = /^```sh/; next } inside' "$root/README.md" | sed -E ':a; /\\$/ { N; s/\\\n *//; ba }; s/ +# .*//' |
        grep -m 1 -F -- "$1"
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }
told() {   # MS COMMAND: a line of the transcript
    printf '%8.1f s  $ %s\n' "$(awk -v ms="$1" 'BEGIN { print ms / 1000 }')" "$2" >>"$work/transcript"
}
seen() {   # LINES FILE: the last lines that have something in them
    grep -av '^Script ' "$2" | sed -E 's/\r+$//; s/.*\r//' | grep -a . | tail -n "$1" | sed 's/^/            /' | cut -c1-220 >>"$work/transcript"
}
# types CODE SHOWN COMMAND: runs it; the transcript has what is said last, SHOWN lines of it
types() {
    local start code
    start=$(now_ms)
    timeout 7200 script -qec "$3" "$work/said" >/dev/null 2>&1 </dev/null
    code=$?
    told $(($(now_ms) - start)) "$3"
    seen "$2" "$work/said"
    [ "$code" -eq "$1" ]
    verdict $? "$3: exit code $code, expected $1: $(tail -n 5 "$work/said")"
}

: >"$work/transcript"
if [ ! -x "$train_gpt" ]; then types 0 1 "$(readme 'make deps && make')"; fi
needs "$train_gpt" "$tokenize" "build/$device$variant/loss_curve"
mkdir "$work/tree" && cp -r docs "$work/tree" && cd "$work/tree" || exit 70
ln -s "$train_gpt" train_gpt && ln -s "$tokenize" tokenize && ln -s "$root/build/$device$variant/loss_curve" loss_curve

types 0 1 "$(readme './tokenize --train 4096 --output data/mine/vocabulary')"
types 0 1 "$(readme './tokenize --tokenizer data/mine/vocabulary')"
check "training and validation tokens" [ -s data/mine/manifest.json ]

# Ctrl-C when a tenth of the steps are done: a busy machine may see it late
train=$(readme './train_gpt --data mine' | sed -E "s/--max-steps [0-9]+/--max-steps $steps/; s/--warmup [0-9]+/--warmup $((steps / 10 + 1))/")
mkfifo keys && exec 5<>keys
start=$(now_ms)
# exec: a shell that waits would end by the signal itself, with 130
timeout 1800 script -qec "exec $train" "$work/said" >/dev/null 2>&1 <keys & terminal=$!
for _ in $(seq 150000); do
    [ "$(grep -sc '"loss"' runs/mine/metrics.jsonl)" -ge $((steps / 10)) ] 2>/dev/null && break
    kill -0 $terminal 2>/dev/null || break
    sleep 0.01
done
printf '\003' >&5
wait $terminal
code=$?
exec 5>&-
told $(($(now_ms) - start)) "$train   # Ctrl-C after step $((steps / 10))"
seen 2 "$work/said"
[ "$code" -eq 75 ] && compgen -G 'runs/mine/step_*/manifest.json' >/dev/null
verdict $? "$train: stopped with $code: $(tail -n 5 "$work/said")"
stopped=$(grep -c '"loss"' runs/mine/metrics.jsonl)
check "it stopped on the way" [ "$stopped" -lt "$steps" ]

own() { readme "$1" | sed 's|runs/first|runs/mine|g; s|data/local|data/mine|g; s|int main(|The |'; }
types 0 2 "$(own './train_gpt --resume 1')"
check "all steps have their record" [ "$(grep -c '"loss"' runs/mine/metrics.jsonl)" -eq "$steps" ]
losses=$(sed -nE 's/.*"val_loss":([0-9.]+).*/\1/p' runs/mine/metrics.jsonl)
check "the loss has fallen: $(xargs <<<"$losses")" awk -v first="$(head -n 1 <<<"$losses")" -v last="$(tail -n 1 <<<"$losses")" 'BEGIN { exit !(last > 0 && last < first - 0.5) }'
types 0 1 "$(own './loss_curve runs/first')"
check "a picture" grep -q '<svg' runs/mine/loss.svg
types 0 12 "$(own './train_gpt generate')"
check "a text" grep -aqE '[1-9][0-9]* tokens written' "$work/said"   # how long it is, end-of-text decides
types 0 2 "$(own './train_gpt evaluate')"
types 0 2 "$(own './train_gpt export')"
for file in config.json tokenizer.json; do check "exported $file" [ -s "exported/$file" ]; done
check "exported weights" compgen -G 'exported/*.safetensors'

echo "A new user, $(nproc) cores, $steps steps, $((SECONDS - began)) s in all:"
cat "$work/transcript"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
