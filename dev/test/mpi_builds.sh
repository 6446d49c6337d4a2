#!/usr/bin/env bash
# Builds without and with MPI, which differ in one object: what each program links, and start-up without MPI.
#
# Both are made in the same folders one after the other, so that nothing else is compiled; those with MPI stay.
set -uo pipefail
cd "$(dirname "$0")/../.."
passed=0 failed=0
verdict() {   # STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $2"; fi
}
cpu=build/cpu-bf16/train_gpt cuda=build/cuda-bf16-all/train_gpt

build() {   # PROGRAM MAKE_ARGUMENTS...
    local program=$1 device=cpu variant=
    [ "$program" = "$cpu" ] || device=cuda variant=-all
    shift
    make --no-print-directory -j"$(nproc)" DEVICE=$device VARIANT=$variant PRECISION=bf16 "$@" "$program"
}
links() { ldd "$1" | grep -q "lib$2\.so"; }   # PROGRAM LIBRARY

programs=("$cpu")
if [ -e "$cuda" ]; then programs+=("$cuda"); else echo "SKIPPED the CUDA build's links: make cuda-compile has not made $cuda"; fi
for program in "${programs[@]}"; do
    build "$program" USE_MPI=0 && ! links "$program" mpi
    verdict $? "$program without MPI: $(ldd "$program" | grep mpi)"
    if [ "$program" = "$cpu" ]; then
        dev/test/startup_test.sh
        verdict $? "start-up by tcp and fs in a build without MPI"
    else
        links "$program" nccl
        verdict $? "$program without MPI links NCCL"
    fi
    if ! build "$program" USE_MPI=1; then
        build "$program" && echo "SKIPPED $program with MPI: there is no mpi.h"
        continue
    fi
    links "$program" mpi && { [ "$program" = "$cpu" ] || links "$program" nccl; }
    verdict $? "$program with MPI links it, and NCCL: $(ldd "$program" | grep -E 'mpi|nccl')"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
