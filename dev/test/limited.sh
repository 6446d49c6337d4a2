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
marked() (   # without this function's own
    unset "$mark"
    grep -lszxF "$mark=1" /proc/[0-9]*/environ | grep -oE '[0-9]+'
)
export "$mark=1"
timeout --foreground -k 5 "$seconds" "$@" &   # --foreground: it stays in this script's process group
trap 'kill -s TERM $!' INT TERM HUP
wait $!
status=$?
left=$(marked)
if [ -n "$left" ]; then
    kill -s TERM $left 2>/dev/null
    for _ in {1..30}; do
        left=$(marked)
        [ -n "$left" ] || break
        sleep 0.1
    done
    [ -z "$left" ] || kill -s KILL $left 2>/dev/null
fi
[ $status -ne 137 ] || status=124   # it did not listen
exit $status
