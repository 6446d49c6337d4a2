#!/usr/bin/env bash
# Runs the project's checks and sums them up: `dev/test/run.sh short`, or `long [PART...]`: all parts, or those; `long help`
# lists the parts.
#
# A check is a line `check NAME COMMAND...` in checks.sh, a part some rows of a table there. It passes when the
# command exits 0; counting.sh says as how many.
# The last line printed is "N passed, N failed, N skipped"; skips print their reason. Before it stand the slowest checks, what
# each group of checks took beside its budget, and what failed. A clean tree that passes leaves build/tested-COMMIT.
set -uo pipefail
cd "$(dirname "$0")/../.."
length=${1:-short}
parts=("${@:2}")
logs=build/logs
passed=0 failed=0 skipped=0
failures=()
jobs=$(nproc)
commit=$(git rev-parse --short HEAD 2>/dev/null)
is_clean() { [ -n "$commit" ] && [ -z "$(git status --porcelain 2>&1)" ] && [ "$(git rev-parse --short HEAD)" = "$commit" ]; }

. dev/test/counting.sh

log_of() { echo "$logs/${1//[^a-zA-Z0-9]/-}.log"; }

# What the checks that follow count as, in the table of processor time; checks.sh sets it.
group=others

perform() {   # NAME COMMAND...: into its log; status, seconds, processor seconds and group stand beside it
    local log status TIMEFORMAT='%R %U %S'
    log=$(log_of "$1")
    { time "${@:2}" >"$log" 2>&1 </dev/null; } 2>"$log.time"
    status=$?
    awk -v status=$status -v group="$group" '{ printf "%d %.0f %.1f %s\n", status, $1, $2 + $3, group }' "$log.time" >"$log.status"
}

# What failed in a log: the scripts' lines, and doctest's errors under the names of their cases. What is equal but for its
# numbers is told once.
what_failed() {   # LOG LINES
    sed 's/\x1b\[[0-9;]*m//g' "$1" | tr -d '\0' | awk '
        function tell(line, kind) {
            kind = line; gsub(/[0-9]+/, "#", kind)
            if (told[kind]++) { repeated++; return 0 }
            print line
            return 1
        }
        /^TEST CASE:/ { name = $0; next }
        /^FAILED|ERROR:|: \*\*\* |: error: / {
            if (name != "") tell(name)
            name = ""; values = tell($0) ? 2 : 0; next }
        values > 0 && /^ +(values|logged):/ { print; values-- }
        END { if (repeated) print "(" repeated " more lines like these)" }' |
        cut -c1-240 | awk -v most="$2" '{ line[NR] = $0 } END {
            for (i = 1; i <= NR && i <= most; i++) print line[i]
            if (NR > most) print "(" NR - most " more lines in the log)" }'
}

report() {   # NAME: what has been performed counts
    local name=$1 log status seconds of p f
    log=$(log_of "$name")
    read -r status seconds of <"$log.status"
    count "$log" "$status"
    passed=$((passed + p)) failed=$((failed + f))
    skipped=$((skipped + $(skips_of "$log" | wc -l)))
    printf '%6d passed, %d failed %6d s\n' "$p" "$f" "$seconds"
    printf '%s %s %s\n' "$seconds" "$of" "$name" >>"$logs/times"
    skips_of "$log" | sed 's/^/    /'
    if [ "$status" -ne 0 ] || [ "$f" -gt 0 ]; then
        failures+=("$name")
        { what_failed "$log" 20 | grep . || tail -n 20 "$log"; } | sed 's/^/    | /'
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

# The table of the long checks. A row counts twice where it speaks of @P, for bf16 and fp32.
row_parts=() row_needs=() row_checks=()
row() {   # PART NEEDS CHECK...
    local precision precisions=any
    [[ $* != *@P* ]] || precisions="bf16 fp32"
    for precision in $precisions; do
        row_parts+=("${1//@P/$precision}") row_needs+=("$2")
        row_checks+=("$(printf '%q ' "${@:3}" | sed "s/@P/$precision/g")")
    done
}
list_parts() {
    local i words
    printf '%-19s %-15s %s\n' part needs "what it runs"
    for i in "${!row_parts[@]}"; do
        eval "words=(${row_checks[i]})"
        printf '%-19s %-15s %s\n' "${row_parts[i]}" "${row_needs[i]:--}" "${words[1]:-all that make test runs}"
    done
}
not_here() { echo "FAILED: this needs $1, which is not on this machine; \`make deps\` installs what tests need"; return 1; }
long_checks() {   # the rows of the parts that are asked for
    local i need part='' built='' check
    for i in "${!row_parts[@]}"; do
        [ ${#parts[@]} -eq 0 ] || [[ " ${parts[*]} " == *" ${row_parts[i]} "* ]] || continue
        eval "check=(${row_checks[i]})"
        [ "${check[0]}" = beside ] || reports
        if [ "$part" != "${row_parts[i]}" ]; then
            part=${row_parts[i]}
            echo "-- $part"
            built=
        fi
        if [ -z "$built" ] && [[ " ${row_needs[i]} " == *" cpu "* ]]; then
            built=yes
            builds_for_cpu
        fi
        for need in ${row_needs[i]}; do
            [[ $need == cpu || $need == *\? ]] || command -v "$need" >/dev/null || check=(check "${check[1]}" not_here "$need")
        done
        "${check[@]}"
    done
    reports
}

clang() { make --no-print-directory -j"$jobs" DEVICE=cpu CXX=clang++ VARIANT=-clang "$@"; }
sanitized() {   # g++ 12 takes its own instrumentation of std::regex for uses of what is not initialised
    make --no-print-directory -j"$jobs" DEVICE=cpu PRECISION=bf16 VARIANT=-sanitized OPTIMIZE=-O1 \
        EXTRA_FLAGS="-g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wno-maybe-uninitialized" "$@"
}
old_cpu() { make --no-print-directory -j"$jobs" DEVICE=cpu VARIANT=-old CPU_ARCH=x86-64-v3 "$@"; }
gnu() { make --no-print-directory -j"$jobs" DEVICE=cpu "$@"; }

. dev/test/checks.sh
for name in "${parts[@]}"; do
    [[ " ${row_parts[*]} " != *" $name "* ]] || continue
    [ "$name" = help ] && list_parts && exit
    { echo "there is no part $name of make test-long; there are:" && list_parts; } >&2
    exit 64
done
rm -rf "$logs" && mkdir -p "$logs"
if [ "$length" = short ]; then short_checks; else long_checks; fi

# Skips whose reason docs/testing.md does not list.
unlisted_skips() {
    awk -F'|' '/^\| begins with/ { table = 1; next } table && !/^\|/ { exit } table { print $2 }' docs/testing.md |
        grep -oE '`[^`]+`' | tr -d '`' >"$logs/reasons"
    local log
    for log in "$logs"/*.log; do skips_of "$log"; done | sort -u | awk '
        NR == FNR { reason[$0]; next }
        { for (r in reason) if (index($0, "SKIPPED " r) == 1) next
          sub(/^SKIPPED /, ""); print "FAILED: docs/testing.md lists no such reason: " $0; unlisted = 1 }
        END { exit unlisted }' "$logs/reasons" -
}

# Processor seconds of one fixed computation, 10^9 multiply-adds that wait for one another: by it machines compare.
yardstick() {
    local program=$logs/yardstick TIMEFORMAT='%U'
    echo 'int main(int n, char**) { double x = n; for (int i = 0; i < 1000000000; i++) x = x * 0.999999999 + 1e-9; return x > 1e9; }' \
        >"$program.cpp"
    g++ -O1 -ffp-contract=off "$program.cpp" -o "$program" && { time "$program"; } 2>&1
}

# Processor time of the groups, as multiples of the yardstick; a group above its budget (checks.sh) is named, nothing fails.
processor_time() {
    local unit=$1 name budget
    for name in "${!budgets[@]}"; do
        budget=${budgets[$name]}
        awk -v unit="$unit" -v name="$name" -v budget="$budget" -v yellow=$'\e[33m' -v plain=$'\e[0m' '
            $3 == name { sum += $2 }
            END {
                units = sum / unit
                above = units > budget
                printf "  %s%-8s %7.0f s %6.0f of %5d%s\n", above ? yellow : "", name, sum, units, budget,
                    above ? " ABOVE ITS BUDGET" plain : ""
            }' "$logs/times"
    done | sort -k2,2nr
}

check "reasons of what was skipped" unlisted_skips

# the last lines say all that is needed, for that may be all that is kept
echo
if [ -s "$logs/times" ]; then
    echo "slowest:"
    sort -nr "$logs/times" | head -n 10 | awk '{ seconds = $1; sub(/^[^ ]+ [^ ]+ [^ ]+ /, ""); printf "  %6d s %s\n", seconds, $0 }'
    grep -ahoE '^(0|[1-9][0-9]*)\.[0-9]{6} s: .+' "$logs"/*.log | sort -nr | head -n 10 | awk '{ seconds = $1; sub(/^[^ ]+ s: /, ""); printf "  %6d s case %s\n", seconds, $0 }'
fi
if [ "$length" = short ] && unit=$(yardstick); then
    echo "processor time, in seconds and in multiples of 10^9 multiply-adds ($unit s; $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)):"
    processor_time "$unit"
fi
for name in "${failures[@]}"; do
    echo "failed: $name"
    what_failed "$(log_of "$name")" $((${#failures[@]} > 15 ? 1 : 15 / ${#failures[@]})) | sed 's/^/    | /'
done
if [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] && [ "$length" = short ] && is_clean; then
    touch "build/tested-$commit"
    echo "this commit has passed: build/tested-$commit"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
