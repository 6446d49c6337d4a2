#!/usr/bin/env bash
# Runs a command for at most SECONDS and leaves nothing of it behind: dev/test/limited.sh SECONDS COMMAND...
# Returns the command's code, or 124 if its time ran out.
#
# A signal to the command does not reach all: ranks are process groups of their own (scripts/launch.sh), and one that
# waits for its peers may not listen. What would stay keeps the card's memory and slows what is measured next. So every
# process started from here carries a mark in its environment, and is asked to end (TERM), then killed.
set -u
seconds=$1
shift
mark=LIMITED_$$
look() {   # left: processes with the mark; undecided: whether one shows no environment, because it is becoming another (exec)
    local process
    local -a environment
    left=() undecided=
    for process in /proc/[0-9]*; do
        { mapfile -d '' -t environment <"$process/environ"; } 2>/dev/null || continue
        if [ ${#environment[@]} = 0 ]; then
            [ ! -e "$process/exe" ] || undecided=1   # what has ended, and threads of the kernel, have none
        elif [[ " ${environment[*]} " == *" $mark=1 "* ]]; then
            left+=("${process#/proc/}")
        fi
    done
}
export "$mark=1"
timeout --foreground -k 5 "$seconds" "$@" &   # --foreground: it stays in this script's process group
trap 'kill -s TERM $!' INT TERM HUP
wait $!
status=$?
asked=" "
for round in {0..30}; do
    look
    [ ${#left[@]} != 0 ] || [ -n "$undecided" ] || break
    for process in "${left[@]}"; do
        if [ "$round" = 30 ]; then
            kill -s KILL "$process" 2>/dev/null
        elif [[ "$asked" != *" $process "* ]]; then
            kill -s TERM "$process" 2>/dev/null
            asked+="$process "
        fi
    done
    sleep 0.1
done
[ $status -ne 137 ] || status=124   # it did not listen
exit $status
