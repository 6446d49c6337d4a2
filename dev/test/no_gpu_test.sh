#!/usr/bin/env bash
# The CUDA build on a machine without a GPU: it starts, says what is missing, and exits with 69.
# Alone: it builds.
source "$(dirname "$0")/common.sh"
for precision in bf16 fp32; do
    program=build/cuda-$precision-all/train_gpt
    if [ ! -x "$program" ]; then
        echo "SKIPPED $program on a machine without a GPU: it was not built (no nvcc)"
        continue
    elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        echo "SKIPPED $program on a machine without a GPU: this one has a GPU"
        continue
    fi
    message=$("$program" 2>&1)
    code=$?
    [ $code -eq 69 ] && grep -q "NVIDIA GPU and its driver" <<<"$message" && grep -q "make DEVICE=cpu" <<<"$message"
    verdict $? "$program: exit code $code, expected 69 and advice; it said: $message"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
