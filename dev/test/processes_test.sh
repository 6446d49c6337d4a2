#!/usr/bin/env bash
# The tests of several ranks, each rank a process, as on GPUs (on_ranks_testing.h): under scripts/launch.sh those that fit the
# number of processes run and the others are passed over with a message; a process alone passes over what needs more.
source "$(dirname "$0")/common.sh"
export TRAIN_GPT_TEST_RANKS=processes TRAIN_GPT_CHECKS=${TRAIN_GPT_CHECKS:-none}
# NAME PROCESSES PROGRAM CASES LEAST_TESTS PASSED_OVER: every process must run so many cases, all well
check() {
    local log=$work/log status
    timeout 1200 scripts/launch.sh -n "$2" "$3" -tc="$4" >"$log" 2>&1
    status=$?
    local ends over
    ends=$(sed -nE 's/.*test cases: *[0-9]+ \| *([0-9]+) passed \| *0 failed.*/\1/p' <(sed 's/\x1b\[[0-9;]*m//g' "$log") |
        awk -v least="$5" '$1 >= least { n++ } END { print n + 0 }')
    over=$(grep -ac 'passed over: needs' "$log")
    [ "$status" -eq 0 ] && [ "$ends" -eq "$2" ] && [ "$6" = "$([ "$over" -gt 0 ] && echo yes || echo no)" ]
    verdict $? "$1 (exit $status, $ends of $2 processes ended well, $over passed over): $(tail -n 15 "$log")"
}
common=build/$device$variant/unit_test model=build/$device-${PRECISION:-bf16}$variant/unit_test
check "collectives, alone" 1 "$common" 'comm:*' 5 yes
check "certificate and layouts, alone" 1 "$model" 'certificate: every*,layouts:*,certificate: bytes*' 4 yes
check "collectives, 2 processes" 2 "$common" 'comm:*' 5 yes
check "certificate's mutations, 2 processes" 2 "$model" 'certificate: every*' 2 yes
check "layouts, cut and resumed, 2 processes" 2 "$model" 'layouts:*' 2 yes
check "attention of a run, 2 processes" 2 "$model" 'attention of a run:*' 3 no
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
