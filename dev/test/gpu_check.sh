#!/usr/bin/env bash
# Everything worth knowing from a GPU in one go, within ten minutes, building included: `make gpu-check`.
# Builds for the GPU at hand, runs the tests, then small ones under compute-sanitizer, several ranks on one card, a short
# training run, benchmarks; what says most comes first. Every part has a time limit; what no time is left for is skipped
# and named. The last lines say what passed, failed and was skipped. GPU_CHECK_SECONDS=N for another limit in all.
# Not run on a GPU yet.
set -uo pipefail
cd "$(dirname "$0")/../.."
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "No GPU answers on this machine (nvidia-smi)." >&2
    exit 69
fi
logs=build/logs
mkdir -p "$logs"
deadline=$((SECONDS + ${GPU_CHECK_SECONDS:-600}))
passed=() failed=() skipped=()

part() {   # NAME SECONDS COMMAND...
    local name=$1 limit=$2 log=$logs/gpu-${1//[^a-zA-Z0-9]/-}.log start=$SECONDS left=$((deadline - SECONDS)) status
    shift 2
    printf '%-52s ' "$name"
    if [ $left -lt 2 ]; then
        echo "SKIPPED: no time left"
        skipped+=("$name (no time left)")
        return
    fi
    [ $left -lt "$limit" ] && limit=$left
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    if [ $status -eq 0 ]; then
        echo "ok      $((SECONDS - start)) s  $(grep -aE '^\[doctest\] test cases|passed, [0-9]+ failed' "$log" | tail -n 1 |
            sed 's/\x1b\[[0-9;]*m//g; s/^\[doctest\] //')"
        passed+=("$name")
        return
    fi
    local why="exit $status"
    [ $status -eq 124 ] && why="stopped after $limit s"
    echo "FAILED  $((SECONDS - start)) s  ($why)"
    tail -n 25 "$log" | sed 's/^/    | /'
    failed+=("$name ($why; $log)")
}
build() { part "$1" 300 make --no-print-directory -j"$(nproc)" DEVICE=cuda "${@:2}"; }
sanitize() {   # TOOL SECONDS NAME COMMAND...
    if command -v compute-sanitizer >/dev/null; then
        part "$1, $3" "$2" compute-sanitizer --tool "$1" --error-exitcode 1 "${@:4}"
    else
        skipped+=("$1, $3 (no compute-sanitizer on the PATH)")
    fi
}

build "build bf16" PRECISION=bf16 all unit_test test_gpt build/cuda-bf16/bench
part "unit tests" 60 build/cuda/unit_test
part "model tests bf16" 45 build/cuda-bf16/unit_test
part "whole model bf16" 45 build/cuda-bf16/test_gpt
# the kernels that wait for copies and share memory between threads, on shapes longer than their pipelines
kernels='attention: a small case*,attention: queries that see no key*,ptx:*'
sanitize racecheck 40 "attention and instructions" build/cuda/unit_test -tc="$kernels"
sanitize synccheck 25 "attention and instructions" build/cuda/unit_test -tc="$kernels"
sanitize initcheck 25 "attention and instructions" build/cuda/unit_test -tc="$kernels"
part "NCCL, 2 and 4 ranks on one card" 120 dev/test/nccl_one_gpu.sh
part "benchmarks bf16" 90 make --no-print-directory -j"$(nproc)" DEVICE=cuda PRECISION=bf16 bench
sanitize memcheck 60 "whole model bf16" build/cuda-bf16/test_gpt -tc='*golden*'
sanitize racecheck 40 "reductions" build/cuda/unit_test -tc='layernorm*,classifier*,reduce*'
part "training bf16" 60 env DEVICE=cuda PRECISIONS=bf16 dev/test/train_test.sh
build "build fp32" PRECISION=fp32 all unit_test test_gpt
part "model tests fp32" 45 build/cuda-fp32/unit_test
part "whole model fp32" 45 build/cuda-fp32/test_gpt
part "training fp32" 60 env DEVICE=cuda PRECISIONS=fp32 dev/test/train_test.sh

echo
for name in "${failed[@]}"; do echo "failed: $name"; done
for name in "${skipped[@]}"; do echo "SKIPPED $name"; done
echo "${#passed[@]} passed, ${#failed[@]} failed, ${#skipped[@]} skipped, $SECONDS s"
exit $((${#failed[@]} > 0))
