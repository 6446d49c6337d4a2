#!/usr/bin/env bash
# Starts N processes of a program on this machine, without MPI: scripts/launch.sh -n N [-p PORT] PROGRAM ARGUMENTS...
#
# Every process learns its place from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# Waits for all of them. Returns 0 if all ended well, 75 (stopped, but resumable) if one was lost or stopped early, else
# the first other exit code. Signals INT, TERM and USR1 are passed on to all processes.
set -u

usage() {
    sed -n '2s/^# //p' "$0" >&2
    exit 64
}

ranks=
port=
while getopts n:p: option; do
    case $option in
        n) ranks=$OPTARG ;;
        p) port=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[[ $ranks =~ ^[1-9][0-9]*$ && $# -gt 0 ]] || usage
# an unprivileged port that differs between runs on one machine
[ -n "$port" ] || port=$((20000 + ($$ * 7 + RANDOM) % 40000))

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

result=0
for ((rank = 0; rank < ranks; rank++)); do
    # wait returns early when a signal arrives; ask again until the process has ended
    while :; do
        wait "${pids[rank]}"
        code=$?
        kill -0 "${pids[rank]}" 2>/dev/null || break
    done
    if [ $code -gt 128 ]; then
        echo "launch.sh: rank $rank was killed by signal $((code - 128))" >&2
        code=75
    fi
    if [ $code -eq 75 ]; then
        result=75
    elif [ $code -ne 0 ] && [ $result -eq 0 ]; then
        result=$code
    fi
done
exit $result
