#!/usr/bin/env bash
# The parts of `make test-long` (run.sh): the list of them, a part that there is not, and a small table of rows that pass,
# fail, are for both precisions, run beside each other or need a tool that is not here.
source "$(dirname "$0")/common.sh"
expect 0 "124M against double precision, fp32" dev/test/run.sh long help
expect 0 "part " make --no-print-directory test-long PART=help
for parts in nonsense "model nonsense" "nonsense help"; do
    # shellcheck disable=SC2086   # words
    expect 64 "there is no part nonsense of make test-long; there are:" dev/test/run.sh long $parts
    check "$parts: the parts are listed, and nothing runs" bash -c 'grep -q "^bare-test " "$0" && ! grep -q "^--" "$0"' "$work/out"
done

mkdir -p "$work/dev/test" "$work/docs" && cp dev/test/{run,counting}.sh "$work/dev/test" && cp docs/testing.md "$work/docs"
cat >"$work/dev/test/checks.sh" <<'END'
short_checks() { check "short" true; }
builds_for_cpu() { echo "builds"; }
row short    ""            short_checks
row first-@P cpu           check "first, @P" [ @P = fp32 ]
row second   "cpu bash"    check "two words" [ "a  b" = "a  b" ]
row second   "no-such?"    check "what skips itself" true
row second   cpu           beside "beside, @P" true
row third    "no-such"     check "without its tool" true
END
run=("$work/dev/test/run.sh" long)
expect 0 "short               -               all that make test runs" "${run[@]}" help
expect 0 "second              no-such?        what skips itself" "${run[@]}" help
expect 1 "7 passed, 2 failed, 0 skipped" "${run[@]}"
check "parts in order" [ "$(grep -a '^--' "$work/out" | xargs)" = "-- short -- first-bf16 -- first-fp32 -- second -- third" ]
check "builds once a part" [ "$(grep -ac '^builds' "$work/out")" = 3 ]
check "what fails is named" grep -q '^failed: first, bf16' "$work/out"
check "a tool that is not here is named" grep -q 'this needs no-such, which is not on this machine' "$work/out"
expect 0 "5 passed, 0 failed" "${run[@]}" second
expect 0 "6 passed, 0 failed" "${run[@]}" second first-fp32
expect 1 "1 passed, 1 failed" "${run[@]}" third
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
