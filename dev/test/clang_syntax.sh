#!/usr/bin/env bash
# clang++ compiles every source of the CPU build, its tests and benchmarks too, without a warning: `clang_syntax.sh
# [FILE...]`. Nothing is made of them. clang++ 14, the oldest known to do, refuses what g++ takes (a captured structured
# binding), and uses no precompiled headers here, so that a header that a file forgets to name is found.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 70
command -v clang++ >/dev/null || { echo "SKIPPED clang++ and all sources: no clang++" && exit 0; }
mapfile -t files < <([ $# -gt 0 ] && printf '%s\n' "$@" ||
    git ls-files '*.cu' '*.cpp' | grep -vE '_cudnn(_test)?\.cpp$|^dev/test/fuzz/')
compile() {   # FILE, as the Makefile does where there is neither MPI nor PCRE2
    clang++ -fsyntax-only -x c++ -std=c++20 -march=native -Wall -Wextra -Wshadow -Werror -Wno-unknown-pragmas \
        -Wno-pass-failed -DPRECISION_BF16 -DPROGRAM_VERSION='"none"' -Illmc/cuda_on_cpu/include -I. \
        $([ -d third_party/include ] && echo -isystem third_party/include) "$1" 2>&1 | grep -E '(error|warning):'
    [ "${PIPESTATUS[0]}" -eq 0 ] || echo "FAILED: $1"
}
export -f compile
wrong=$(printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -c 'compile "$1"' compile)
failed=$(grep -c '^FAILED' <<<"$wrong")
[ -z "$wrong" ] || echo "$wrong"
echo "$((${#files[@]} - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
