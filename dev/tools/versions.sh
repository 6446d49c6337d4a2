#!/usr/bin/env bash
# Compiles what uses NCCL and cuDNN against the headers of their oldest and newest versions (fetch_headers.sh), for `make
# cuda-compile`; skipped where these are not there. CXX and CUDA_INCLUDE: compiler, and folder of CUDA's headers.
#
# That a guard matters is shown too: without it the oldest headers must not do. So is that what is older is refused by name.
set -uo pipefail
cd "$(dirname "$0")/../.."
headers=third_party/headers
for end in oldest newest; do
    [ -e $headers/$end/nccl.h ] && [ -e $headers/$end/cudnn.h ] && continue
    echo "SKIPPED oldest and newest NCCL and cuDNN: no headers in $headers/$end (dev/tools/fetch_headers.sh fetches them)"
    exit 0
done
log=$(mktemp) && edited=$(mktemp --suffix=.cpp) && trap 'rm -f "$log" "$edited"' EXIT
failed=0
compiles() {   # OLDEST|NEWEST FLAGS... FILE
    ${CXX:-g++} -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror -DUSE_CUDNN -I. "${@:2}" \
        $([ -d third_party/include ] && echo -isystem third_party/include) -isystem $headers/"$1" \
        -isystem "${CUDA_INCLUDE:-/usr/local/cuda/include}" >"$log" 2>&1
}
verdict() {   # STATUS WHAT
    [ "$1" -eq 0 ] && return
    failed=$((failed + 1))
    echo "FAILED: $2"
    grep -m 3 error "$log" | sed 's/^/    /'
}
without_guard() {   # FILE GUARD
    sed "s/$2/1/" "$1" >"$edited"
    ! cmp -s "$1" "$edited" && ! compiles oldest "$edited"
    verdict $? "$1 compiles against the oldest headers without its guard: $2"
}
for end in oldest newest; do
    for file in $(grep -lE 'nccl\.h|process/(comm|world)\.h' llmc/process/*.cpp) llmc/kernels/attention/*_cudnn*.cpp; do
        compiles $end "$file"
        verdict $? "$file with the $end NCCL and cuDNN"
    done
done
without_guard llmc/process/comm.cpp 'NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)'
without_guard llmc/kernels/attention/graph_cudnn.cpp 'CUDNN_VERSION >= 90800'
{ echo '#include <nccl.h>'
  echo '#undef NCCL_VERSION_CODE'
  echo '#define NCCL_VERSION_CODE NCCL_VERSION(2, 17, 1)'
  cat llmc/process/comm.cpp; } >"$edited"
! compiles oldest "$edited" && grep -q 'error.*2\.18\.1' "$log"
verdict $? "nccl.h 2.17.1 is refused by its version"
[ $failed -eq 0 ] && echo "compiled against the oldest and the newest headers of NCCL and cuDNN"
