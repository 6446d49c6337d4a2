#!/usr/bin/env bash
# What the logs of checks count as (counting.sh).
source "$(dirname "$0")/common.sh"
source dev/test/counting.sh
counts() {   # PASSED FAILED STATUS LOG
    local p f
    printf '%b' "$4" >"$work/log"
    count "$work/log" "$3"
    [ "$p $f" = "$1 $2" ]
    verdict $? "status $3 and this log count as $p passed, $f failed, expected $1 and $2: $4"
}
doctest='[doctest] test cases:  12 |  11 passed | 1 failed | 557 skipped\n'
counts 1 0 0 ''
counts 1 0 0 'g++ -c a.cpp\ng++ a.o\n'
counts 1 0 0 'g++ -c a.cpp\nSKIPPED spills: no cuobjdump\ng++ a.o\n'   # a build that skips a part has built the rest
counts 0 0 0 'SKIPPED CUDA build, bf16, sm_90a: no nvcc on this machine\n'
counts 0 0 0 'SKIPPED a: no b\n\nSKIPPED c: no d\n'
counts 0 0 0 'SKIPPED several hosts: no right\n0 passed, 0 failed\n'
counts 3 0 0 'SKIPPED several hosts: no right\n3 passed, 0 failed\n'
counts 5 1 1 'FAILED: a thing\n5 passed, 1 failed\n'
counts 11 1 1 "$doctest"
counts 14 1 1 "$doctest"'3 passed, 0 failed\n'
none='[doctest] test cases:  0 |  0 passed | 0 failed | 557 skipped\n'
counts 0 1 0 "$none"   # names that no case has
counts 12 2 0 "$doctest$none${none/0 passed/1 passed}"
counts 0 1 139 "$none"
counts 0 0 0 "x.cpp:3: MESSAGE: SKIPPED IPv6: none\n$none"
counts 0 1 0 '0 passed, 0 failed\n'   # a script that tested nothing and does not say why
counts 3 1 0 '3 passed, 0 failed\n0 passed, 0 failed\n'
counts 0 1 0 "g++ -c a.cpp\n$none"
counts 0 1 1 ''
counts 0 1 2 'SKIPPED a: no b\n'
counts 4 1 137 '4 passed, 0 failed\n'   # killed at its end
counts 2 0 0 '\033[0m[doctest] test cases:  2 | \033[0;32m 2 passed\033[0m | 0 failed | 0 skipped\n'
[ "$(printf 'x.cpp:3: MESSAGE: SKIPPED IPv6: none\nSKIPPED a: no b\nSKIPPED a: no b\n' >"$work/log" && skips_of "$work/log")" = $'SKIPPED IPv6: none\nSKIPPED a: no b' ]
verdict $? "skips of a log: $(skips_of "$work/log")"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
