#!/usr/bin/env bash
# A rank that is killed while several train together: some other rank names it, and every other one ends with exit code 75.
# Also: a rank that fails tells the others; a slow one is named in the records; a signal to stop, sent to one rank, stops all
# of them after the same step; what was lost can be resumed. Nothing of this waits by the clock.
#
# `lost_rank_test.sh long`, for a machine that does nothing else: at 20 places, also by SIGSTOP and by a loop while heartbeats
# go on, which are seen by silence alone (--peer-timeout, --stall-timeout: 2 and 3 s); all have ended within 10 s, each loss
# told by the watchdog. Ranks that are suspended together go on, and so do those of which one works alone for long.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
length=${1:-short}

numbers_as_data 20000 3000
# --peer-timeout: so long that ranks which get no processor are not taken for lost; how long a rank works alone in a sync and in
# a read; and, of the long form, --stall-timeout and the limit from a loss to the end of the last rank
timeout_s=600 slow_us=0 late_us=400000 limit_ms=
if [ "$length" = long ]; then timeout_s=2 stall_s=3 slow_us=700000 late_us=100000 limit_ms=10000; fi

# Where a file loop.RANK is, that rank loops for ever when it next reads its data, outside all collectives; where
# slow.RANK is, whatever it syncs takes SLOW_US longer, and where stuck.RANK is, 20 s; where broken.RANK is, its reads fail,
# and where late.RANK is, each takes LATE_US longer. With LOOP_AT in the environment every rank loops for ever from its read of
# that number of training data on, and leaves looping.RANK.
with=()
cat >"$work/loop.cpp" <<'LOOP'
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
static bool is_training_data(int file) {
    char path[PATH_MAX] = {};
    const bool is_known = readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path - 1) > 0;
    return is_known && std::string(path).find("train") != std::string::npos;
}
extern "C" ssize_t pread(int file, void* into, size_t bytes, off_t offset) {
    const std::string sign = std::string(getenv("RUN_FOLDER")) + "/loop." + getenv("RANK");
    while (access(sign.c_str(), F_OK) == 0) usleep(1000);
    const std::string broken = std::string(getenv("RUN_FOLDER")) + "/broken." + getenv("RANK");
    if (access(broken.c_str(), F_OK) == 0) return errno = EIO, -1;
    const std::string late = std::string(getenv("RUN_FOLDER")) + "/late." + getenv("RANK");
    if (access(late.c_str(), F_OK) == 0) usleep(LATE_US);
    static std::atomic<int> reads = 0;
    const char* const loop_at = getenv("LOOP_AT");
    if (loop_at != nullptr && is_training_data(file) && ++reads >= atoi(loop_at)) {
        close(open((std::string(getenv("RUN_FOLDER")) + "/looping." + getenv("RANK")).c_str(), O_CREAT | O_WRONLY, 0666));
        for (;;) usleep(1000);
    }
    return syscall(SYS_pread64, file, into, bytes, offset);
}
extern "C" int fsync(int file) {
    const std::string sign = std::string(getenv("RUN_FOLDER")) + "/slow." + getenv("RANK");
    if (access(sign.c_str(), F_OK) == 0) usleep(SLOW_US);
    const std::string stuck = std::string(getenv("RUN_FOLDER")) + "/stuck." + getenv("RANK");
    if (access(stuck.c_str(), F_OK) == 0) sleep(20);
    return static_cast<int>(syscall(SYS_fsync, file));
}
extern "C" ssize_t pread64(int file, void* into, size_t bytes, off_t offset) { return pread(file, into, bytes, offset); }
LOOP

# Runs one rank and leaves its process id and exit code in $run.
cat >"$work/one_rank.sh" <<'RANK'
"$@" &
echo $! >"$RUN_FOLDER/pid.$RANK.new" && mv "$RUN_FOLDER/pid.$RANK.new" "$RUN_FOLDER/pid.$RANK"
wait $!
code=$?
echo $code >"$RUN_FOLDER/code.$RANK.new" && mv "$RUN_FOLDER/code.$RANK.new" "$RUN_FOLDER/code.$RANK"
exit $code
RANK

start() {   # NAME RANKS ARGUMENTS...: in the background; sets run (its folder) and launcher (its process)
    run=$work/$1
    local ranks=$2
    shift 2
    mkdir "$run"
    RUN_FOLDER=$run scripts/launch.sh -g 300 -n "$ranks" bash "$work/one_rank.sh" "${with[@]}" "$train_gpt" \
        --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 --heads 2 --channels 32 \
        --seq-len 32 --micro-batch 2 --total-batch 768 --max-steps 100000 --val-every 3 --val-max-batches 12 \
        --sample-every 0 --log-every 1 --checkpoint-every 4 --keep-checkpoints 2 --output-dir "$run/out" --init-timeout 600 \
        --peer-timeout "$timeout_s" "$@" >"$run/log" 2>&1 &
    launcher=$!
}

await() {   # PATTERN: waits until the log has it, "" waits for the processes to be there
    if [ -n "$1" ]; then eventually "$launcher" grep -qs "$1" "$run/log"; else eventually "$launcher" [ -e "$run/pid.$victim" ]; fi
}

all_loop() {   # RANKS
    local r
    for ((r = 0; r < $1; r++)); do [ -e "$run/looping.$r" ] || return 1; done
}

# lose SIGNAL RANK RANKS PLACE DELAY_MS ARGUMENTS...: loses the rank DELAY_MS after the log has shown PLACE, or, at the PLACE
# all-loop, when every rank loops outside of collectives, where the watchdog alone can see it; the signal LOOP lets it loop
count=0
# Where its watchdog gets no time, a rank that finds its connection lost tells of that first.
told_by_connection() { grep -qE "the connection of rank ([0-9] to rank $1|$1 to rank [0-9]) is lost" "$run/log"; }
lose() {
    local signal=$1 ranks=$3 place=$4 delay=$5 began code bad=
    victim=$2
    shift 5
    count=$((count + 1))
    local name="rank $victim of $ranks, SIG$signal $delay ms after '$place' ($*)"
    start "run$count" "$ranks" "$@"
    if [ "$place" = all-loop ]; then eventually "$launcher" all_loop "$ranks"; else await "$place"; fi
    sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
    if [ "$signal" = LOOP ]; then
        touch "$run/loop.$victim"
    else
        kill -s "$signal" "$(cat "$run/pid.$victim")" 2>/dev/null || bad=" it had ended before;"
    fi
    began=$(date +%s%N)
    for ((r = 0; r < ranks; r++)); do
        [ "$r" -eq "$victim" ] && continue
        eventually $$ [ -e "$run/code.$r" ]
        code=$(cat "$run/code.$r" 2>/dev/null || echo none)
        [ "$code" = 75 ] || bad="$bad rank $r ended with $code;"
    done
    local took=$((($(date +%s%N) - began) / 1000000))
    [ -z "$limit_ms" ] || [ "$took" -le "$limit_ms" ] || bad="$bad the last one took $took ms;"
    # with group, operation and number, its own of the last heartbeat or what waits for it, unless it was lost before
    # there were any; and no other rank is
    local lost='on [^ ]+ (died or was cut off|has been silent for [0-9.]+ s|has not advanced)'
    local where=', last heard at .*step [0-9]+, [a-z-]+ number [0-9]+ of group [a-z]+ '
    local at_start="rank $victim $lost, last heard at start-up|lost the connection to rank $victim at start-up"
    grep -qE "rank $victim $lost$where" "$run/log" || { [ -z "$place" ] && grep -qE "$at_start" "$run/log"; } ||
        { [ $signal = KILL ] && [ "$length" != long ] && [ "$place" != all-loop ] && told_by_connection "$victim"; } ||
        bad="$bad the lost rank is not named with its place;"
    ! grep -oE "rank [0-9]+ $lost" "$run/log" | has -vE "rank $victim $lost" || bad="$bad another rank is named;"
    kill -KILL "$(cat "$run/pid.$victim")" 2>/dev/null
    wait "$launcher"
    [ $? -eq 75 ] || bad="$bad launch.sh did not return 75;"
    [ -z "$bad" ]
    verdict $? "$name:$bad $(grep -v '^step\|^|\|^+' "$run/log" | tail -n 12)"
    echo "$name: $took ms; $(grep -hoE "rank [0-9]+ $lost[^(]*" "$run/log" | head -n 1)"
}

lose KILL 1 3 '^step    3/' 0 --zero 1                  # then validation
[ "$length" != long ] || lose STOP 2 3 '^step    4/' 0 --zero 3   # then a checkpoint
lose KILL 0 2 '^step    2/' 5
lose KILL 1 3 '^step    6/' 20 --pp 3 --layers 3        # its links are told with micro-batch and chunk
grep -qE 'rank 1 on .* of group pp (forward|backward) [0-9] to [0-9], micro-batch [0-9]+, chunk 0 ' "$run/log" ||
    { [ "$length" != long ] && told_by_connection 1; }
verdict $? "where a pipeline stage was lost: $(grep 'rank 1 on' "$run/log")"
# Without checkpoints, in which a rank may work alone for as long as it takes. Between micro-batches all ranks may have
# asked for the same; the one that loops is that whose host does not wait for its device.
if g++ -shared -fPIC -O1 -DSLOW_US=$slow_us -DLATE_US=$late_us "$work/loop.cpp" -o "$work/loop.so" 2>/dev/null; then
    # between the collectives of two steps (there are 8 reads in a step of 3 ranks), rank 0 too
    with=(env LD_PRELOAD="$work/loop.so" LOOP_AT=44)
    lose KILL 1 3 all-loop 0 --zero 1 --val-every 0
    lose KILL 0 3 all-loop 0 --zero 1 --val-every 0
    with=(env LD_PRELOAD="$work/loop.so")
    if [ "$length" = long ]; then
        loops=(--stall-timeout $stall_s --checkpoint-every 0)
        lose LOOP 1 3 '^step    2/' 0 --zero 2 "${loops[@]}"
        # pipeline stages in the middle of their schedules, whose numbers of operations differ: those with the embedding and
        # with the classifier read data there
        lose LOOP 0 3 '^step    3/' 5 --pp 3 --layers 3 "${loops[@]}"
        lose LOOP 2 3 '^step    4/' 9 --pp 3 --layers 3 --pp-schedule gpipe "${loops[@]}"
        lose LOOP 0 2 '^step    4/' 3 --zero 3 "${loops[@]}" --total-batch 128
        start slow 2 --zero 2 --stall-timeout $((stall_s - 1)) --max-steps 4   # all syncs at the end of the checkpoint take longer
        touch "$run/slow.0"
        wait "$launcher"
        verdict $? "a checkpoint that rank 0 ends alone for longer than --stall-timeout: $(tail -n 3 "$run/log")"
    fi
    # one that fails while its part of a checkpoint is stuck on its disk tells the others before it waits for that
    start broken 2 --zero 2 --checkpoint-every 100
    touch "$run/stuck.1"
    await '^step  103/'
    touch "$run/broken.1"
    began=$(date +%s%N)
    wait "$launcher"
    status=$? took=$((($(date +%s%N) - began) / 1000000))
    [ $status -eq 74 ] && [ "$(cat "$run/code.0")" = 75 ] && { [ -z "$limit_ms" ] || [ $took -le "$limit_ms" ]; }
    verdict $? "a rank that fails while it saves: exit code $status after $took ms: $(tail -n 5 "$run/log")"
    # a slow rank is named in the records, with its share of the others' waiting: two late reads a step
    at=40 more=20 least=12
    if [ "$length" != long ]; then at=10 more=9 least=3; fi
    waited() {   # FIRST LAST: in how many of these steps the others waited for rank 1
        sed -nE 's/.*"step":([0-9]+),.*"slowest_rank":1,"waiting":([0-9.e-]+),.*/\1 \2/p' "$run/out/metrics.jsonl" |
            awk -v first="$1" -v last="$2" '$1 >= first && $1 <= last && $2 > 0.3' | wc -l
    }
    has_waited() { [ "$(waited "$1" 1000000)" -ge $least ]; }
    start late 3 --zero 1 --checkpoint-every 0 --val-every 0 --total-batch 192
    await "^step *$at/"
    touch "$run/late.1"
    since=$(grep -c '^step ' "$run/log")
    await "^step *$((since + more))/"
    # other ranks may be slower still for want of a processor, so not in how many of these steps, but that it is
    [ "$length" = long ] || eventually "$launcher" has_waited $((since + 5))
    kill -TERM "$(cat "$run/pid.0")"
    wait "$launcher"
    [ "$length" = long ] || more=$(($(grep -c '"loss"' "$run/out/metrics.jsonl") - since))
    late=$(waited $((since + 5)) $((since + more - 1))) before=$(waited 1 $((at - 1)))
    # one of three; how it was before only a machine can tell that does nothing else
    [ "$late" -ge $least ] && { [ "$length" != long ] || [ "$before" -le 20 ]; }
    verdict $? "a slow rank named in $late of $((more - 5)) steps, in $before of $((at - 1)) before: $(sed -n "$((since + 10)),$((since + 12))p" "$run/out/metrics.jsonl")"
    with=()
else
    echo "SKIPPED a rank that loops: no g++ to build what makes it loop"
fi
if [ "$length" = long ]; then
    for delay in 100 250 400; do lose KILL 1 2 '' $delay; done   # start-up
    lose KILL 0 2 '' 300
    lose STOP 1 3 '' 400
    for delay in 0 3 7 11 17; do lose KILL 2 3 '^step    5/' $delay --zero 2; done   # in and between collectives
    lose KILL 0 3 '^step    4/' 0 --zero 3              # while it writes a checkpoint
    lose STOP 0 3 '^step    4/' 1 --zero 3
    lose KILL 1 3 '^step    4/' 2 --zero 2
    lose STOP 1 2 '^step    3/' 0                       # validation
    lose STOP 0 2 '^val loss' 0
    lose KILL 3 4 '^checkpoint' 0 --zero 1
    lose STOP 2 4 '^step    2/' 10 --zero 2
fi

# ---- a signal to stop, sent to one rank
start signal 3 --zero 2
await '^step    5/'
if [ "$length" = long ]; then
    ids=()
    for r in 0 1 2; do ids+=("$(cat "$run/pid.$r")"); done
    kill -STOP "${ids[@]}"   # together, for longer than --peer-timeout: nobody is lost
    sleep $((timeout_s + 1))
    steps=$(grep -c '^step ' "$run/log")
    kill -CONT "${ids[@]}"
    await "^step *$((steps + 20))/"
    grep -q "^step *$((steps + 20))/" "$run/log"
    verdict $? "stopped together and continued, $steps steps before: $(tail -n 3 "$run/log")"
fi
kill -USR1 "$(cat "$run/pid.1")"
wait "$launcher"
status=$?
[ $status -eq 75 ] && [ "$(cat "$run"/code.* | sort -u)" = 75 ] && grep -q "a signal to rank 1 received: stopped after step" "$run/log"
verdict $? "SIGUSR1 to rank 1 stops all: $(tail -n 3 "$run/log")"
last=$(ls -d "$run"/out/step_* | tail -n 1)
steps=$(grep -c '"loss"' "$run/out/metrics.jsonl")
[ "$((10#${last##*_}))" -eq "$steps" ]
verdict $? "the checkpoint $last is of the last of $steps steps"
out=$run/out
start resumed 3 --zero 2 --output-dir "$out" --resume --max-steps $((steps + 2))
wait "$launcher"
verdict $? "what was stopped can be resumed: $(tail -n 3 "$run/log")"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
