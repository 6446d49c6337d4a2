#!/usr/bin/env bash
# Fuzzes every parser for so many seconds each: `dev/test/fuzz/run.sh [SECONDS] [TARGET...]`; findings stay in build/fuzz.
set -uo pipefail
cd "$(dirname "$0")/../../.."
seconds=${1:-60}
shift || true
program=build/cpu-fuzz/parsers_fuzz
[ $# -gt 0 ] || set -- $(FUZZ_TARGET='' $program 2>&1 | sed -nE 's/.*one of: //p')
passed=0 failed=0
for target in "$@"; do
    work=build/fuzz/$target
    mkdir -p "$work"
    FUZZ_TARGET=$target FUZZ_SEEDS=$work $program "$work" >/dev/null 2>&1 -runs=0
    if FUZZ_TARGET=$target $program "$work" -max_total_time="$seconds" -max_len=20000 -rss_limit_mb=2048 -timeout=10 \
        -artifact_prefix="$work-" >"$work.log" 2>&1; then
        passed=$((passed + 1))
        printf '%-16s %s\n' "$target" "$(grep -aE '^Done|DONE' "$work.log" | tail -n 1)"
    else
        failed=$((failed + 1))
        printf '%-16s FAILED, see %s\n' "$target" "$work.log"
        grep -aE 'ERROR|error:|Test unit' "$work.log" | head -n 3
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
