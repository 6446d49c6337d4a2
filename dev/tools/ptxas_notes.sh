#!/usr/bin/env bash
# Compiles by nvcc: ptxas_notes.sh error|warning COMMAND... Shows what ptxas merely notes though it makes asynchronous code
# slow, or wrong on a bad day: products that wait for each other, registers that are not handed over, arrays in memory.
# With `error` such a note fails the compile.
set -uo pipefail
kind=$1
said=$("${@:2}" -Xptxas -v 2>&1)
status=$?
notes=$(grep -E '\(C75[0-9]+\)|instructions are serialized|setmaxnreg|(^|[^0-9])[1-9][0-9]* bytes stack frame' <<<"$said")
if [ -n "$notes" ]; then
    printf '%s\nptxas notes, each a%s here (dev/tools/ptxas_notes.sh):\n%s\n' "$said" \
        "$([ "$kind" = error ] && echo 'n error' || echo ' warning')" "$notes" >&2
    [ "$kind" = warning ] || exit 1
    exit $status
fi
grep -vE '^ptxas info|bytes stack frame' <<<"$said" >&2   # what it says of every kernel
exit $status
