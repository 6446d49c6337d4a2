#!/usr/bin/env bash
# Compiles as its arguments say, by nvcc, and fails where ptxas merely notes what makes asynchronous code slow, or wrong on
# a bad day: products that wait for each other, registers that are not handed over, arrays in memory.
set -uo pipefail
said=$("$@" -Xptxas -v 2>&1)
status=$?
notes=$(grep -E '\(C75[0-9]+\)|instructions are serialized|setmaxnreg|(^|[^0-9])[1-9][0-9]* bytes stack frame' <<<"$said")
if [ -n "$notes" ]; then
    printf '%s\nptxas notes that are errors here (dev/tools/ptxas_notes.sh):\n%s\n' "$said" "$notes" >&2
    exit 1
fi
grep -vE '^ptxas info|bytes stack frame' <<<"$said" >&2   # what it says of every kernel
exit $status
