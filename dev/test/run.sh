#!/usr/bin/env bash
# Runs the project's checks and sums them up: `dev/test/run.sh short`, or `long [PART...]`: all parts, or those.
#
# A check is a line `check NAME COMMAND...` in checks.sh. It passes when the command exits 0. What doctest programs count as
# test cases is added up; a script counts as one check, or as many as it reports in a line "N passed, N failed".
# The last line printed is "N passed, N failed, N skipped"; skips print their reason.
set -uo pipefail
cd "$(dirname "$0")/../.."
length=${1:-short}
parts=("${@:2}")
logs=build/logs
rm -rf "$logs" && mkdir -p "$logs"
passed=0 failed=0 skipped=0
failures=()
jobs=$(nproc)

count() {   # LOG STATUS: sets p and f to the passed and failed cases that a log tells of
    local log=$1 status=$2 line
    p=0 f=0
    while read -r line; do
        p=$((p + $(sed -E 's/.*\| +([0-9]+) passed.*/\1/' <<<"$line")))
        f=$((f + $(sed -E 's/.*\| +([0-9]+) failed.*/\1/' <<<"$line")))
    done < <(sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -aE '^\[doctest\] test cases:')
    while read -r line; do
        p=$((p + ${line%% passed*}))
        f=$((f + $(sed -E 's/.* ([0-9]+) failed.*/\1/' <<<"$line")))
    done < <(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$log")
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$status" -eq 0 ] && [ "$p" -eq 0 ] && ! grep -qaE '^SKIPPED' "$log"; then p=1; fi
}

log_of() { echo "$logs/${1//[^a-zA-Z0-9]/-}.log"; }

perform() {   # NAME COMMAND...: into its log; status and seconds stand beside it
    local log start=$SECONDS
    log=$(log_of "$1")
    "${@:2}" >"$log" 2>&1 </dev/null
    echo "$? $((SECONDS - start))" >"$log.status"
}

report() {   # NAME: what has been performed counts
    local name=$1 log status seconds p f
    log=$(log_of "$name")
    read -r status seconds <"$log.status"
    count "$log" "$status"
    passed=$((passed + p)) failed=$((failed + f))
    skipped=$((skipped + $(grep -acE '^SKIPPED' "$log")))
    printf '%6d passed, %d failed %6d s\n' "$p" "$f" "$seconds"
    grep -aE '^SKIPPED' "$log" | sed 's/^/    /'
    if [ "$status" -ne 0 ]; then
        failures+=("$name")
        tail -n 40 "$log" | sed 's/^/    | /'
        echo "    (exit $status; whole log: $log)"
    fi
}

check() {   # NAME COMMAND...
    printf '%-58s ' "$1"
    perform "$@"
    report "$1"
}

# Checks that leave a core idle run two at a time: `beside NAME COMMAND...` for each, then `reports` for all of them.
waiting=()
beside() {   # NAME COMMAND...
    while [ "$(jobs -pr | wc -l)" -ge 2 ]; do wait -n; done
    perform "$@" &
    waiting+=("$1")
}
reports() {
    local name
    wait
    for name in "${waiting[@]}"; do
        printf '%-58s ' "$name"
        report "$name"
    done
    waiting=()
}

check_scripts() {   # SCRIPT...: those that must have the machine to themselves come last
    local script alone=()
    for script; do
        if grep -q '^# Alone: ' "$script"; then alone+=("$script"); else beside "$(basename "$script")" "$script"; fi
    done
    reports
    for script in "${alone[@]}"; do check "$(basename "$script")" "$script"; done
}

# Whether the part of the long checks that follows is to run; it is announced. Unknown names are an error at the end.
known=()
part() {   # NAME
    known+=("$1")
    [ "$length" = long ] || return 1
    [ ${#parts[@]} -eq 0 ] || [[ " ${parts[*]} " == *" $1 "* ]] || return 1
    echo "-- $1"
}

clang() { make --no-print-directory -j"$jobs" DEVICE=cpu CXX=clang++ VARIANT=-clang "$@"; }
sanitized() {   # g++ 12 takes its own instrumentation of std::regex for uses of what is not initialised
    make --no-print-directory -j"$jobs" DEVICE=cpu PRECISION=bf16 VARIANT=-sanitized OPTIMIZE=-O1 \
        EXTRA_FLAGS="-g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wno-maybe-uninitialized" "$@"
}
gnu() { make --no-print-directory -j"$jobs" DEVICE=cpu "$@"; }

. dev/test/checks.sh
for name in "${parts[@]}"; do
    [[ " ${known[*]} " == *" $name "* ]] && continue
    echo "there is no part $name; the parts are: ${known[*]}" >&2
    exit 64
done

# Of a log, what failed: the scripts' lines, and doctest's errors under the names of their cases.
what_failed() {
    sed 's/\x1b\[[0-9;]*m//g' "$1" | tr -d '\0' | awk '
        /^TEST CASE:/ { name = $0; next }
        /^FAILED|ERROR:|: \*\*\* / { if (name != "") print name; name = ""; print; values = 2; next }
        values > 0 && /^ +(values|logged):/ { print; values-- }' | cut -c1-240 | head -n 8
}

# the last lines say all that is needed, for that may be all that is kept
echo
for name in "${failures[@]}"; do
    echo "failed: $name"
    what_failed "$logs/${name//[^a-zA-Z0-9]/-}.log" | sed 's/^/    | /'
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
