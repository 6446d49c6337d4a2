#!/usr/bin/env bash
# Requests to stop, as an operator makes them: one process and several under launch.sh, by kill and by Ctrl-C in a
# pseudo-terminal, at random times. Whatever was stopped ends with 75, leaves nothing behind, and its resumed run equals
# the uncut one. `signals_test.sh long`: 300 runs of one process and 50 of 2 and 4; SEED=N repeats their times.
# Alone: keys are typed at chosen times.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
command -v pgrep >/dev/null || { echo "there is no pgrep: make deps installs it (procps)" >&2 && exit 70; }
seed=${SEED:-$RANDOM}
RANDOM=$seed
echo "SEED=$seed"
single_runs=8 launched_runs=8
if [ "${1:-}" = long ]; then single_runs=300 launched_runs=50; fi

numbers_as_data 20000 3000
steps=24
# Products in bf16 then run through sgemm, which takes the stack pointer into the heap (not so with AMX): where a handler
# in place of the thread that waits lets every tenth run die. What allows still less is kept.
case ${ONEDNN_MAX_CPU_ISA:-} in
SSE41 | AVX | AVX2*) ;;
*) export ONEDNN_MAX_CPU_ISA=AVX512_CORE ;;
esac
command_of() {   # FOLDER ARGUMENTS...: sets the array `command`
    command=("$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 --heads 2
        --channels 64 --seq-len 64 --micro-batch 2 --total-batch 512 --max-steps $steps --lr 1e-3 --val-every 10
        --val-max-batches 8 --sample-every 0 --checkpoint-every 15 --output-dir "$@")
}
defaults=(env --default-signal=INT,HUP)   # what this script was started with does not count (nohup, a background job)
start() {   # as a terminal's foreground job, which does not ignore SIGINT; sets pid
    set -m
    "${defaults[@]}" "$@" &
    pid=$!
    set +m
}
train() {   # FOLDER ARGUMENTS...: in the background
    command_of "$@"
    start "${command[@]}" >>"$1.log" 2>&1
}
launch() {   # RANKS FOLDER ARGUMENTS...: in the background
    local ranks=$1
    shift
    command_of "$@"
    start scripts/launch.sh -n "$ranks" "${command[@]}" --zero 2 >>"$1.log" 2>&1
}
ends() {   # sets code; what has not ended after ten minutes never will
    local deadline=$((SECONDS + 600))
    while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.02; done
    if kill -0 "$pid" 2>/dev/null; then
        echo "not ended after 600 s: $pid, killed"
        kill -KILL -- "-$pid"
        pkill -KILL -f -- "--output-dir $work/"
    fi
    wait "$pid"
    code=$?
}
await() {   # FOLDER PATTERN: until its log has it, or the run has ended
    until grep -qs "$2" "$1.log" || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
}
mkfifo "$work/nothing" && exec 6<>"$work/nothing"
pause() {   # MILLISECONDS; without another process, which a busy machine starts late
    local seconds
    printf -v seconds '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
    read -rt "$seconds" -u 6
}
below() { echo $(((RANDOM * 32768 + RANDOM) % $1)); }
left_over() { pgrep -f -- "--output-dir $1( |$)"; }   # processes of the run

# The signals that all threads of a process block, and those that have a handler: 1 is HUP, 2 INT, 10 USR1, 15 TERM.
stop_mask=0x4203
field() { sed -n "s/^$2:\s*/0x/p" "$1" 2>/dev/null; }
has_begun() { local mask; mask=$(field "/proc/$pid/status" SigBlk); [ $((${mask:-0} & stop_mask)) -eq $((stop_mask)) ]; }

same() { same_run "$(printf 'step_%08d' $steps)" "$1" "$2"; }   # FOLDER UNCUT

# resumes FOLDER UNCUT CODE COMMAND...: the run ended with CODE 75 and goes on by COMMAND FOLDER --resume, and whatever
# `options` holds, to equal the uncut one; sets bad
options=()
resumes() {
    local out=$1 uncut=$2
    bad=
    if [ "$3" -ne 75 ]; then bad="exit $3"; fi
    shift 3
    if [ -z "$bad" ] && grep -q '"loss"' "$out/metrics.jsonl" 2>/dev/null && ! compgen -G "$out/step_*/manifest.json" >/dev/null; then
        bad="steps were made and nothing was saved"
    fi
    grep -q 'received' "$out.log" || bad+=" does not say why it stopped"
    [ -n "$bad" ] || { "$@" "$out" --resume "${options[@]}" && ends && [ "$code" -eq 0 ]; } || bad+=" resumed: exit $code"
    [ -n "$bad" ] || same "$out" "$uncut" || bad="resumed differs from uncut"
}

# ---- one process
for attention in library own; do
    began=$(milliseconds)
    train "$work/uncut-$attention" --attention $attention && ends
    declare "took_$attention=$(($(milliseconds) - began))"
    verdict "$code" "uncut, $attention: $(tail -n 3 "$work/uncut-$attention.log")"
done

train "$work/threads" --max-steps 100000
await "$work/threads" 'step    3/'
threads=0 ready=0   # the one that waits for them counts as not blocking them
for task in /proc/"$pid"/task/*/status; do
    threads=$((threads + 1))
    [ $(($(field "$task" SigBlk) & stop_mask)) -ne $((stop_mask)) ] || ready=$((ready + 1))
done
[ $ready -eq $((threads - 1)) ] && [ $ready -gt 0 ] && [ $(($(field "/proc/$pid/status" SigCgt) & stop_mask)) -eq 0 ]
verdict $? "signals to stop are blocked in $ready of $threads threads, and have no handler: $(grep Sig "/proc/$pid/status")"
kill -TERM "$pid"; ends

for signal in INT TERM HUP USR1; do
    for try in {1..20}; do   # again where the signal came after the last step
        rm -rf "$work/$signal" "$work/$signal.log"
        train "$work/$signal"
        await "$work/$signal" 'step    3/'
        kill -s $signal "$pid"; ends
        [ "$code" -eq 0 ] || break
    done
    resumes "$work/$signal" "$work/uncut-library" "$code" train
    [ -z "$bad" ] && grep -q "SIG$signal received: stopped after step" "$work/$signal.log"
    verdict $? "SIG$signal: $bad $(tail -n 3 "$work/$signal.log")"
done

for limit in 2 10 60; do   # again with more where start-up took it all
    rm -rf "$work/limit" "$work/limit.log"
    train "$work/limit" --max-steps 100000 --time-limit $limit
    ends
    ! grep -q 'during start-up' "$work/limit.log" || continue
    break
done
[ "$code" -eq 75 ] && grep -q -- '--time-limit reached: stopped after step' "$work/limit.log" &&
    compgen -G "$work/limit/step_*/manifest.json" >/dev/null
verdict $? "--time-limit saves and stops (exit $code): $(tail -n 3 "$work/limit.log")"

# long steps: one request waits for it, what arrives twice at once is one, a second ends the run in the midst of a step
long_step=(--total-batch 32768 --val-every 0) endless_step=(--total-batch 16777216 --val-every 0)
for try in {1..20}; do   # again where this machine took longer than 0.4 s between them
    rm -rf "$work/twice" "$work/twice.log"
    train "$work/twice" "${long_step[@]}"
    await "$work/twice" 'step    1/'
    pause 50; kill -INT "$pid"; pause 50; kill -INT "$pid"; ends
    [ "$code" -eq 130 ] || break
done
[ "$code" -eq 75 ] && compgen -G "$work/twice/step_*/manifest.json" >/dev/null
verdict $? "SIGINT twice within 50 ms is one request (exit $code): $(tail -n 3 "$work/twice.log")"
for try in {1..20}; do   # again where start-up was not over
    rm -rf "$work/second" "$work/second.log"
    train "$work/second" "${endless_step[@]}"
    await "$work/second" 'the device reports'
    pause $((300 * try)); kill -INT "$pid"
    await "$work/second" 'stopping after this step'
    pause 600; kill -INT "$pid" 2>/dev/null; ends
    [ "$code" -eq 75 ] || break
done
[ "$code" -eq 130 ] && grep -q "SIGINT within 10 s of another request" "$work/second.log"
verdict $? "a second SIGINT ends the run at once (exit $code): $(tail -n 3 "$work/second.log")"

# start-up: a rank that waits for another one, which never comes
train "$work/alone" --init tcp --init-address "127.0.0.1:$(free_port)" --processes 2 --process-rank 0 --init-timeout 600
until has_begun || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
pause 300; kill -INT "$pid"; ends
[ "$code" -eq 75 ] && grep -q "during start-up" "$work/alone.log"
verdict $? "a rank that waits for its peers stops (exit $code): $(tail -n 3 "$work/alone.log")"

# what was ignored from the start stays so; nobody reads the output
trap '' HUP
kept=("${defaults[@]}") defaults=()
train "$work/nohup"
defaults=("${kept[@]}")
trap - HUP
await "$work/nohup" 'step    3/'
kill -HUP "$pid"; ends
[ "$code" -eq 0 ] && same "$work/nohup" "$work/uncut-library"
verdict $? "SIGHUP under nohup is ignored (exit $code): $(tail -n 3 "$work/nohup.log")"
command_of "$work/pipe"
"${command[@]}" 2>"$work/pipe.log" | head -n 1 >/dev/null
[ "${PIPESTATUS[0]}" -eq 0 ] && same "$work/pipe" "$work/uncut-library"
verdict $? "a closed pipe does not end a run: $(tail -n 3 "$work/pipe.log")"

# at random times, from the program's begin (before, signals do what they do to any program) to after its end
died=0 finished=0 stopped=0 early=0
for ((run = 0; run < single_runs || (stopped < single_runs / 4 && run < 10 * single_runs); run++)); do
    attention=$([ $((run % 2)) -eq 0 ] && echo library || echo own)
    signal=$([ $((run / 2 % 2)) -eq 0 ] && echo INT || echo TERM)
    took=took_$attention out=$work/random options=(--attention $attention)
    delay=$(below $((${!took} * 11 / 10)))
    rm -rf "$out" "$out.log"
    train "$out" "${options[@]}"
    until has_begun || ! kill -0 "$pid" 2>/dev/null; do :; done
    [ "$delay" -eq 0 ] || pause "$delay"
    kill -s $signal "$pid" 2>/dev/null; ends
    if [ "$code" -eq 0 ]; then
        finished=$((finished + 1)) bad=
        declare "$took=$((${!took} * 3 / 4 + 1))"   # this machine is faster now than it was
        same "$out" "$work/uncut-$attention" || bad="exit 0, but not as uncut"
    else
        if grep -q '"loss"' "$out/metrics.jsonl" 2>/dev/null; then
            stopped=$((stopped + 1))
        else
            early=$((early + 1))
            declare "$took=$((${!took} * 5 / 4 + 1))"   # or slower
        fi
        resumes "$out" "$work/uncut-$attention" "$code" train
    fi
    [ -z "$bad" ] || { died=$((died + 1)) && echo "run $run, SIG$signal after $delay ms, $attention: $bad $(tail -n 4 "$out.log")"; }
done
[ $died -eq 0 ] && [ $stopped -ge $((single_runs / 4)) ]   # most should come in the midst of training
verdict $? "$died of $run interrupted runs went wrong, $stopped were stopped between steps"
echo "$run interrupted runs: $stopped stopped with a checkpoint, $early before the first step, $finished finished, $died went wrong"

# ---- several processes under launch.sh
options=()
mkfifo "$work/keys"
in_terminal() {   # RANKS FOLDER ARGUMENTS...: in the foreground of a pseudo-terminal; what is written to 5 is typed there
    local ranks=$1
    shift
    command_of "$@"
    exec 5<>"$work/keys"
    start script -qec "exec $(printf '%q ' scripts/launch.sh -n "$ranks" "${command[@]}" --zero 2)" /dev/null \
        <&5 >>"$1.log" 2>&1
}
command -v script >/dev/null || echo "SKIPPED Ctrl-C in a terminal: no script (util-linux) for a pseudo-terminal"
for ranks in 2 4; do
    launch $ranks "$work/uncut-$ranks" && ends
    verdict "$code" "uncut, $ranks ranks: $(tail -n 3 "$work/uncut-$ranks.log")"
done
wrong=0 stopped=0
for ((run = 0; run < launched_runs || (stopped < launched_runs / 2 && run < 10 * launched_runs); run++)); do
    ranks=$((2 + run / 2 % 2 * 2)) out=$work/launched at=$((1 + $(below $((steps / 2)))))
    how=$([ $((run % 2)) -eq 0 ] && echo Ctrl-C || echo kill)
    command -v script >/dev/null || how=kill
    rm -rf "$out" "$out.log"
    if [ $how = Ctrl-C ]; then in_terminal $ranks "$out"; else launch $ranks "$out"; fi
    await "$out" "step *$at/"
    pause "$(below 20)"
    if [ $how = Ctrl-C ]; then
        printf '\003' >&5
    else
        signals=(INT TERM HUP USR1)
        how="kill -${signals[run / 4 % 4]}"
        $how "$pid" 2>/dev/null
    fi
    ends; exec 5>&-
    orphans=$(left_over "$out")
    if [ "$code" -eq 0 ]; then   # it had ended before the signal came
        bad=
        same "$out" "$work/uncut-$ranks" || bad="exit 0, but not as uncut"
    else
        stopped=$((stopped + 1))
        resumes "$out" "$work/uncut-$ranks" "$code" launch $ranks
    fi
    [ -z "$orphans" ] || bad+=" processes remain: $orphans"
    [ -z "$bad" ] || { wrong=$((wrong + 1)) && echo "run $run, $ranks ranks, $how after step $at: $bad $(tail -n 6 "$out.log")"; }
done
[ $wrong -eq 0 ] && [ $stopped -ge $((launched_runs / 2)) ]   # most should come in the midst of training
verdict $? "$wrong of $run runs under launch.sh went wrong, $stopped were stopped"
echo "$run runs of 2 and 4 ranks under launch.sh: $stopped stopped, $wrong went wrong"

# a second Ctrl-C reaches the ranks too
if command -v script >/dev/null; then
    for try in {1..20}; do   # again where start-up was not over
        rm -rf "$work/insist" "$work/insist.log"
        in_terminal 2 "$work/insist" "${endless_step[@]}"
        await "$work/insist" 'the device reports'
        pause $((300 * try)); printf '\003' >&5
        await "$work/insist" 'stopping after this step'
        pause 600; printf '\003' >&5; ends; exec 5>&-
        ! grep -q 'during start-up' "$work/insist.log" || continue
        break
    done
    [ "$code" -eq 75 ] && grep -q "SIGINT within 10 s of another request" "$work/insist.log" && [ -z "$(left_over "$work/insist")" ]
    verdict $? "a second Ctrl-C ends all at once (exit $code): $(tail -n 5 "$work/insist.log")"
    for try in {1..20}; do   # again where the key came after the last step
        rm -rf "$work/suspended" "$work/suspended.log"
        in_terminal 2 "$work/suspended"
        await "$work/suspended" 'step    2/'
        launcher=$(pgrep -f "launch.sh -n 2 .*--output-dir $work/suspended" | tail -n 1)
        printf '\032' >&5
        for ((i = 0; i < 6000; i++)); do
            pause 50
            states=$(for rank in $(pgrep -P "${launcher:-$pid}") $launcher; do sed -n 's/^State:\s*\(.\).*/\1/p' "/proc/$rank/status"; done 2>/dev/null | tr -d '\n')
            [ "$states" != TTT ] && [ -n "$(left_over "$work/suspended")" ] || break
        done
        # script(1) stops itself, too
        kill -CONT "$pid" $launcher 2>/dev/null; ends; exec 5>&-
        [ "$states" != TTT ] && [ "$code" -eq 0 ] || break
    done
    [ "$states" = TTT ] && [ "$code" -eq 0 ] && same "$work/suspended" "$work/uncut-2"
    verdict $? "Ctrl-Z suspends ranks and script ($states), which go on (exit $code): $(tail -n 3 "$work/suspended.log")"
fi
# a rank that is a script, which dies of the signal before the program in it has ended
printf '#!/usr/bin/env bash\n"$@"\nexit $?\n' >"$work/wrapper.sh"
command_of "$work/wrapped" "${long_step[@]}"
start scripts/launch.sh -n 2 bash "$work/wrapper.sh" "${command[@]}" >"$work/wrapped.log" 2>&1
await "$work/wrapped" 'step    1/'
kill -TERM "$pid"; ends
[ "$code" -eq 75 ] && [ -z "$(left_over "$work/wrapped")" ] && compgen -G "$work/wrapped/step_*/manifest.json" >/dev/null
verdict $? "ranks inside scripts are waited for (exit $code): $(tail -n 5 "$work/wrapped.log")"
# a signal that comes as ranks end: launch.sh knows their codes, or says that it does not
if [ "${1:-}" = long ]; then
    codes=
    for try in {1..400}; do
        scripts/launch.sh -n 4 sleep 0.05 >"$work/ending.log" 2>&1 &
        launcher=$!
        sleep "0.0$((55 + RANDOM % 35))"
        kill -TERM $launcher 2>/dev/null
        wait $launcher
        code=$?
        case $code in 0 | 75 | 143) ;; *) codes+=" $code" ;; esac   # 143: before it had begun
    done
    [ -z "$codes" ]
    verdict $? "launch.sh returned$codes for ranks that ended as a signal came"
fi
# the script itself is killed
if setpriv --pdeathsig TERM true 2>/dev/null; then
    launch 2 "$work/killed" --max-steps 100000
    await "$work/killed" 'step    3/'
    kill -KILL "$pid"; ends 2>/dev/null
    for ((i = 0; i < 6000; i++)); do [ -n "$(left_over "$work/killed")" ] || break; pause 50; done
    [ -z "$(left_over "$work/killed")" ] && compgen -G "$work/killed/step_*/manifest.json" >/dev/null
    verdict $? "ranks save and end when launch.sh is killed: $(tail -n 3 "$work/killed.log")"
    # before its ranks have asked to be told of that
    mkdir -p "$work/late"
    cat >"$work/late/setpriv" <<EOF
#!/bin/bash
if [ "\$3" != true ] && [[ \$(ps -o args= -p \$PPID) == *scripts/launch.sh* ]]; then   # else the other rank has killed it
    kill -KILL \$PPID
    while [ "\$(ps -o ppid= -p \$\$)" -eq \$PPID ]; do sleep 0.02; done
fi
"$(command -v setpriv)" "\$@"
echo ended >"$work/late/\$RANK-ended"
EOF
    chmod +x "$work/late/setpriv"
    PATH=$work/late:$PATH scripts/launch.sh -n 2 touch "$work/late/begun" >/dev/null 2>&1
    for ((i = 0; i < 6000; i++)); do [ ! -e "$work/late/0-ended" ] || break; pause 50; done
    [ -e "$work/late/0-ended" ] && [ ! -e "$work/late/begun" ]
    verdict $? "ranks do not begin when launch.sh was killed as it started them"
else
    echo "SKIPPED ranks whose launch.sh is killed: no setpriv (util-linux)"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
