#!/usr/bin/env bash
# Compiles what uses NCCL and cuDNN against the headers of their oldest and newest versions (fetch_headers.sh), for `make
# cuda-compile`; skipped where these are not there. CXX, CUDA_INCLUDE and CUDNN_FLAGS: compiler, folder of CUDA's headers,
# and what make defines where cuDNN is used.
#
# That a guard matters is shown too: without it the oldest headers must not do. So is that what is older is refused by name.
set -uo pipefail
cd "$(dirname "$0")/../.."
headers=third_party/headers
for end in oldest newest; do
    [ -e $headers/$end/include/nccl.h ] && [ -e $headers/$end/include/cudnn_frontend.h ] && continue
    echo "SKIPPED oldest and newest NCCL and cuDNN: no headers in $headers/$end (dev/tools/fetch_headers.sh fetches them)"
    exit 0
done
log=$(mktemp) && edited=$(mktemp --suffix=.cpp) && trap 'rm -f "$log" "$edited"' EXIT
failed=0
compiles() {   # OLDEST|NEWEST FLAGS... FILE
    ${CXX:-g++} -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror -I. -isystem $headers/"$1"/include $CUDNN_FLAGS \
        "${@:2}" -isystem "${CUDA_INCLUDE:-/usr/local/cuda/include}" \
        $([ -d third_party/include ] && echo -isystem third_party/include) >"$log" 2>&1
}
verdict() {   # STATUS WHAT
    [ "$1" -eq 0 ] && return
    failed=$((failed + 1))
    echo "FAILED: $2"
    grep -m 3 error "$log" | sed 's/^/    /'
}
for end in oldest newest; do
    for file in $(grep -lE 'nccl\.h|process/(comm|world)\.h' llmc/process/*.cpp) llmc/kernels/attention/library/*_cudnn*.cpp; do
        compiles $end "$file"
        verdict $? "$file with the $end NCCL and cuDNN"
    done
done
edit() { sed "s/$2/$3/" "$1" >"$edited"; ! cmp -s "$1" "$edited"; }   # FILE WHAT WITH
edit llmc/process/comm.cpp 'NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)' 1 && ! compiles oldest "$edited"
verdict $? "comm.cpp compiles against the oldest headers without its guard"
edit llmc/process/comm.cpp '#include "llmc.process.comm.h"' '#include <nccl.h>\n#undef NCCL_VERSION_CODE\n#define NCCL_VERSION_CODE 21701\n&' &&
    ! compiles oldest "$edited" && grep -q 'error.*2\.18\.1' "$log"
verdict $? "nccl.h 2.17.1 is refused by its version"
edit llmc/kernels/attention/library/attention_cudnn.cpp 'CUDNN_VERSION < 90000' 1 && ! compiles newest "$edited" &&
    grep -q 'error.*cuDNN 9.0 and cudnn-frontend 1.20 or later are needed' "$log"
verdict $? "a cuDNN that is too old is refused by name"
[ $failed -eq 0 ] && echo "compiled against the oldest and the newest headers of NCCL and cuDNN"
