#!/usr/bin/env bash
# gpu_check.sh itself, with programs that stand for the real ones: its summary names every part that failed, that ran out
# of its time and that was left no time, and its exit code tells.
set -uo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
verdict() {   # STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi
}
program() {   # FILE BODY
    mkdir -p "$(dirname "$work/$1")"
    printf '#!/bin/bash\n%s\n' "$2" >"$work/$1"
    chmod +x "$work/$1"
}
mkdir -p "$work/dev/test"
cp dev/test/gpu_check.sh "$work/dev/test/"
program bin/nvidia-smi 'echo "GPU 0: none"'
program bin/make true
program bin/compute-sanitizer 'shift 4; exec "$@"'
for name in build/cuda/unit_test build/cuda-{bf16,fp32}/{unit_test,test_gpt} dev/test/{nccl_one_gpu,train_test}.sh; do
    program $name 'echo "3 passed, 0 failed"'
done
run() { PATH=$work/bin:$PATH timeout 60 "$work/dev/test/gpu_check.sh" >"$work/log" 2>&1; }

run && grep -qE '^16 passed, 0 failed, 0 skipped' "$work/log"
verdict $? "all parts pass: $(tail -n 3 "$work/log")"

program build/cuda-bf16/test_gpt 'echo "a reason"; exit 3'
run
[ $? -eq 1 ] && grep -q '    | a reason' "$work/log" && grep -q '^failed: whole model bf16 (exit 3' "$work/log" &&
    grep -qE '^14 passed, 2 failed, 0 skipped' "$work/log"
verdict $? "a part that fails, alone and under compute-sanitizer: $(tail -n 3 "$work/log")"

program build/cuda/unit_test 'sleep 20'
GPU_CHECK_SECONDS=3 run
[ $? -eq 1 ] && grep -qE '^failed: unit tests \(stopped after [123] s' "$work/log" &&
    grep -q '^SKIPPED benchmarks bf16 (no time left)' "$work/log" && grep -qE '^1 passed, 1 failed, 14 skipped' "$work/log"
verdict $? "a part that hangs, and those after it: $(tail -n 3 "$work/log")"

rm "$work/bin/compute-sanitizer"
program build/cuda/unit_test true
if command -v compute-sanitizer >/dev/null; then
    echo "SKIPPED gpu_check.sh without compute-sanitizer: this machine has one"
else
    run
    [ $? -eq 1 ] && grep -q '^SKIPPED racecheck, attention and instructions (no compute-sanitizer' "$work/log"
    verdict $? "no compute-sanitizer: $(tail -n 3 "$work/log")"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
