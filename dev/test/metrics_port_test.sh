#!/usr/bin/env bash
# --metrics-port from outside: what a run of two ranks serves while it trains is what metrics.jsonl says of that step, silent
# clients hold neither the run nor its end, and a port that is taken ends another run at its start.
# llmc/run/metrics/metrics_server_test.cpp has the server's parts.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
launch=$(realpath scripts/launch.sh)
cd "$work" || exit 70

numbers_as_data 4000 3000
run=("$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --layers 1 --heads 2 --channels 32 --seq-len 32
    --micro-batch 2 --total-batch 128 --val-every 5 --val-max-batches 4 --sample-every 0)
port=$(free_port)

# ask FILE: the answer of the run, into the file; fails where nobody answers
ask() {
    { exec 4<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf 'GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n' >&4
    cat <&4 >"$1"
    exec 4>&-
}
# not at a step that validates, whose own validation may come after the page
has_validated() { ask page && grep -q '^train_gpt_val_loss ' page && grep -qE '^train_gpt_step [0-9]*[1-46-9]$' page; }

"$launch" -n 2 "${run[@]}" --max-steps 2000000 -o run --metrics-port "$port" >log 2>&1 &
pid=$!
eventually $pid has_validated
verdict $? "a run serves its metrics while it trains: $(tail -n 3 log)"
grep -q "^metrics: http://localhost:$port/metrics" log
verdict $? "the run says where"
grep -q '^HTTP/1.1 200 OK' page && grep -q '^Content-Type: text/plain; version=0.0.4' page
verdict $? "an answer of Prometheus' kind: $(head -n 3 page)"

exec 5<>"/dev/tcp/127.0.0.1/$port"   # silent until the end
expect 74 "--metrics-port $port at localhost: cannot listen" "${run[@]}" --max-steps 2 --metrics-port "$port"
expect 74 "--metrics-port $port at localhost: cannot listen" "$train_gpt" check "${run[@]:1}" --max-steps 2 --metrics-port "$port"
kill -TERM $pid
wait $pid
status=$?
exec 5>&-
[ $status -eq 75 ]
verdict $? "a signal ends the run with 75, beside a silent client: $status $(tail -n 3 log)"

# every number of the step's line, and the last validation's at that time
step=$(sed -nE 's/^train_gpt_step ([0-9]+).*/\1/p' page)
{ grep "^{\"step\":$step,\"loss\"" run/metrics.jsonl
    grep '"val_loss"' run/metrics.jsonl | awk -F '[:,]' -v step="$step" '$2 <= step' | tail -n 1 | sed 's/"step":[0-9]*,//'; } |
    sed -E 's/"[a-z_]+":\{[^}]*\},?//g' | grep -oE '"[a-z_]+":[^,}]+' | tr -d '"' | tr ':' ' ' >recorded
awk '/^train_gpt_/ && !/\{/ { sub("train_gpt_", ""); print }' page | tr -d '\r' >served
awk 'NR == FNR { of[$1] = $2; n++; next } $2 == "null" ? of[$1] != "NaN" : of[$1] + 0 != $2 + 0 || !($1 in of) { print; bad = 1 }
    { seen++ } END { exit bad || n < 9 || n != seen }' served recorded >differ
verdict $? "what is served is what step $step recorded: $(cat differ recorded served)"
grep -qF '# TYPE train_gpt_loss gauge' page && grep -q '^train_gpt_exposed_ms{name="' page
verdict $? "types, and values of groups"

expect 64 "--metrics-host 127.0.0.1 without --metrics-port" "${run[@]}" --max-steps 2 --metrics-host 127.0.0.1
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
