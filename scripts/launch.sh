#!/usr/bin/env bash
# Starts N processes of a program on this machine, without MPI: scripts/launch.sh -n N [-p PORT] [-g SECONDS] PROGRAM ARGUMENTS...
#
# Every process learns its place from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# Waits for all of them; once one has ended badly, the others get SECONDS (default 60) to follow, then they are killed,
# stopped ones too. Returns 0 if all ended well, else the first code that is neither 0 nor 75 (a mistake or a bug, which
# starting again would not cure), else 75 (stopped or lost, but resumable). Signals INT, TERM and USR1 are passed on.
set -u

usage() {
    sed -n '2s/^# //p' "$0" >&2
    exit 64
}

ranks=
port=
patience=60
while getopts n:p:g: option; do
    case $option in
        n) ranks=$OPTARG ;;
        p) port=$OPTARG ;;
        g) patience=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[[ $ranks =~ ^[1-9][0-9]*$ && $patience =~ ^[0-9]+$ && $# -gt 0 ]] || usage
# an unprivileged port below the range that outgoing connections use, different between runs on one machine
[ -n "$port" ] || port=$((10000 + ($$ * 7 + RANDOM) % 20000))

pids=()
pass_on() {
    for pid in "${pids[@]}"; do kill -s "$1" "$pid" 2>/dev/null; done
}
for signal in INT TERM USR1; do trap "pass_on $signal" "$signal"; done

export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    pids+=($!)
done

# A process that ends badly starts a timer, whose end is what else `wait -n` may return for.
timer=
result=0
left=$ranks
while [ "$left" -gt 0 ]; do
    ended=
    wait -n -p ended "${pids[@]}" $timer
    code=$?
    [ -n "$ended" ] || continue   # a signal arrived: it has been passed on
    if [ "$ended" = "$timer" ]; then
        echo "launch.sh: killing what has not ended $patience s after the first loss" >&2
        pass_on KILL
        timer=
        continue
    fi
    for rank in "${!pids[@]}"; do [ "${pids[rank]}" = "$ended" ] && break; done
    unset "pids[rank]"
    left=$((left - 1))
    if [ $code -gt 128 ]; then
        echo "launch.sh: rank $rank was killed by signal $((code - 128))" >&2
        code=75
    fi
    [ $code -ne 0 ] || continue
    if [ $result -eq 0 ] || { [ $result -eq 75 ] && [ $code -ne 75 ]; }; then result=$code; fi
    if [ -z "$timer" ] && [ "$left" -gt 0 ]; then
        sleep "$patience" &
        timer=$!
    fi
done
[ -z "$timer" ] || kill "$timer" 2>/dev/null
exit $result
