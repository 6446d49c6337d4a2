#!/usr/bin/env bash
# Starts N processes of a program on this machine, without MPI: scripts/launch.sh -n N [-p PORT] [-g SECONDS] PROGRAM ARGUMENTS...
#
# Every process learns its place from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# Waits for all of them; once one has ended badly, the others get SECONDS (default 60) to follow, then they are killed,
# stopped ones too. Ranks that wait for each other at start-up learn at once of one that has ended, by the file
# TRAIN_GPT_ENDED (llmc/process/ended_ranks.h). Returns 0 if all ended well, else the first code that is neither 0 nor 75
# (a mistake or a bug, which starting again would not cure), else 75 (stopped or lost, but resumable).
#
# Signals INT, TERM, HUP and USR1 are passed on, each time one comes. Every rank is a process group of its own, so that a
# terminal's Ctrl-C reaches it once, by way of this script; Ctrl-Z suspends ranks and script together. Should the script
# be killed, ranks get TERM (where setpriv is there to arrange it).
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
# any port that nothing uses, below those that outgoing connections are given
taken() { grep -qsi ":$(printf %04x "$1") " /proc/net/tcp /proc/net/tcp6; }
[ -n "$port" ] || while port=$((10000 + SRANDOM % 20000)) && taken "$port"; do :; done

# A rank whose parent is already another had not yet asked for the signal when this script was killed.
with_parent=()
if setpriv --pdeathsig TERM true 2>/dev/null; then
    with_parent=(setpriv --pdeathsig TERM sh -c "[ \$PPID = $$ ] && exec \"\$@\"" launch.sh)
fi
groups=()   # of the ranks; each has its leader's number
pass_on() {
    local group
    for group in "${groups[@]}"; do kill -s "$1" -- "-$group" 2>/dev/null; done
}
suspend() {
    pass_on STOP
    kill -s STOP $$
    pass_on CONT
}

# A signal that comes while ranks are started is passed on when all are there.
asked=
trap : PIPE   # nobody need read what this script says
for signal in INT TERM HUP USR1; do trap "asked=$signal" "$signal"; done
# by which ranks of this run know each other from strangers
export TRAIN_GPT_SECRET=${TRAIN_GPT_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
# The file of ranks that have ended. It has no other name, so that nothing is left of it however this script ends.
file=$(mktemp 2>/dev/null) || file=/dev/null
if ! exec {ended_ranks}>"$file"; then
    echo "launch.sh: this script may have too few open files: raise the limit (ulimit -n), which is $(ulimit -n)" >&2
    exit 69
fi
unset TRAIN_GPT_ENDED
if [ "$file" != /dev/null ]; then
    rm "$file"
    export TRAIN_GPT_ENDED=/proc/$$/fd/$ended_ranks
fi
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=localhost MASTER_PORT=$port
set -m   # job control gives each a process group
for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank LOCAL_RANK=$rank "${with_parent[@]}" "$@" </dev/null {ended_ranks}>&- &
    groups+=($!)
done
set +m
for signal in INT TERM HUP USR1; do trap "pass_on $signal" "$signal"; done
trap suspend TSTP
[ -z "$asked" ] || pass_on "$asked"

# A process that ends badly starts a timer, whose end is what else `wait -n` may return for.
pids=("${groups[@]}")   # that have not ended, by rank
timer=
result=0
left=$ranks
while [ "$left" -gt 0 ]; do
    ended=
    for pid in "${pids[@]}" $timer; do   # `wait -n` may be silent of what died while this script did something else
        kill -s 0 "$pid" 2>/dev/null || { ended=$pid && break; }
    done
    if [ -n "$ended" ]; then wait "$ended"; else wait -n -p ended "${pids[@]}" $timer; fi
    code=$?
    [ -n "${ended:-}" ] || continue   # a signal arrived, which has been passed on; bash has unset the variable
    if [ "$ended" = "$timer" ]; then
        echo "launch.sh: killing what has not ended $patience s after the first loss" >&2
        pass_on KILL
        timer=
        continue
    fi
    for rank in "${!pids[@]}"; do [ "${pids[rank]}" = "$ended" ] && break; done
    unset "pids[rank]"
    left=$((left - 1))
    end="rank $rank ended with exit code $code"
    if [ $code -lt 0 ]; then   # bash (5.2) loses the code of what ends while it takes a signal
        end="rank $rank ended as a signal came, with an exit code that is not known"
    elif [ $code -gt 128 ]; then
        end="rank $rank was killed by signal $((code - 128))"
    fi
    if [ $code -lt 0 ] || [ $code -gt 128 ]; then
        code=75
        echo "launch.sh: $end" >&2
    fi
    echo "$code $end" >&"$ended_ranks"
    [ $code -ne 0 ] || continue
    if [ $result -eq 0 ] || { [ $result -eq 75 ] && [ $code -ne 75 ]; }; then result=$code; fi
    if [ -z "$timer" ] && [ "$left" -gt 0 ]; then
        set -m   # out of the way of signals to this script's group
        sleep "$patience" &
        set +m
        timer=$!
    fi
done
[ -z "$timer" ] || { kill -KILL "$timer"; wait "$timer"; } 2>/dev/null   # nothing of this script outlives it

# A rank may be a script that a signal has ended before the program in it: that one gets as long to follow.
still_there() {
    local group
    for group in "${groups[@]}"; do ! kill -s 0 -- "-$group" 2>/dev/null || return 0; done
    return 1
}
deadline=$((SECONDS + patience))
while still_there && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
still_there && pass_on KILL
exit $result
