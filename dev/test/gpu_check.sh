#!/usr/bin/env bash
# Everything worth knowing from a GPU in one go, within ten minutes besides building: `make gpu-check`.
# Builds for the GPU at hand, runs the tests, then a few of them under compute-sanitizer, a short training run, benchmarks.
# Not run on a GPU yet.
set -uo pipefail
cd "$(dirname "$0")/../.."
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "No GPU answers on this machine (nvidia-smi)." >&2
    exit 69
fi
logs=build/logs
mkdir -p "$logs"
failures=()
step() {
    local name=$1 start=$SECONDS
    shift
    printf '%-48s ' "$name"
    if "$@" >"$logs/gpu-${name//[^a-zA-Z0-9]/-}.log" 2>&1; then
        echo "ok    $((SECONDS - start)) s"
    else
        echo "FAILED (exit $?)  $((SECONDS - start)) s"
        tail -n 25 "$logs/gpu-${name//[^a-zA-Z0-9]/-}.log" | sed 's/^/    | /'
        failures+=("$name")
    fi
}
build() { make --no-print-directory -j"$(nproc)" DEVICE=cuda "$@"; }

step "build bf16" build PRECISION=bf16 all unit_test test_gpt build/cuda-bf16/bench
step "build fp32" build PRECISION=fp32 all unit_test test_gpt
step "unit tests" timeout 90 build/cuda/unit_test
for precision in bf16 fp32; do
    step "model tests $precision" timeout 45 build/cuda-$precision/unit_test
    step "whole model $precision" timeout 45 build/cuda-$precision/test_gpt
done
if command -v compute-sanitizer >/dev/null; then
    step "memcheck, whole model bf16" timeout 75 compute-sanitizer --tool memcheck --error-exitcode 1 build/cuda-bf16/test_gpt -tc='*golden*'
    step "racecheck, kernels" timeout 75 compute-sanitizer --tool racecheck --error-exitcode 1 build/cuda/unit_test -tc='layernorm*,classifier*'
else
    echo "SKIPPED compute-sanitizer: not on the PATH"
fi
step "NCCL, 2 and 4 ranks on one card" timeout 120 dev/test/nccl_one_gpu.sh
step "training" env DEVICE=cuda timeout 60 dev/test/train_test.sh
step "benchmarks bf16" timeout 120 make --no-print-directory -j"$(nproc)" DEVICE=cuda PRECISION=bf16 bench

if [ ${#failures[@]} -gt 0 ]; then printf 'failed: %s\n' "${failures[@]}"; fi
exit $((${#failures[@]} > 0))
