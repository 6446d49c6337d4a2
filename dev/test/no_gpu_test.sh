#!/usr/bin/env bash
# The CUDA build on a machine without a GPU: it plans, with the memory of the CPU build; to train, it says what is missing, and
# exits with 69.
# Alone: it builds.
source "$(dirname "$0")/common.sh"
for precision in bf16 fp32; do
    train=build/cuda-$precision-all/train_gpt
    if [ ! -x "$train" ]; then
        echo "SKIPPED $train on a machine without a GPU: it was not built (no nvcc)"
        continue
    elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        echo "SKIPPED $train on a machine without a GPU: this one has a GPU"
        continue
    fi
    message=$("$train" 2>&1)
    code=$?
    [ $code -eq 69 ] && grep -q "NVIDIA GPU and its driver" <<<"$message" && grep -q "make DEVICE=cpu" <<<"$message"
    verdict $? "$train: exit code $code, expected 69 and advice; it said: $message"
    plan=("$train" plan --gpu H100 --recompute none --attention own)
    expect 0 "by closed forms" "${plan[@]}" --model gpt2:124M --processes 8
    expect 0 "speed: " "${plan[@]}" --model gpt2:124M --processes 4 --search 1 --total-batch 65536
    expect 0 "speed: " "$train" plan --gpu H100 --model llama:8B --processes 8 --zero 3
    expect 0 "speed: " "$train" plan --gpu H100 --model gpt2:124M --attention own-sm90
    on_cpu=build/cpu-$precision/train_gpt
    [ -x "$on_cpu" ] || { echo "SKIPPED memory as in the CPU build: there is no $on_cpu" && continue; }
    while read -ra layout; do
        of_run=(--model gpt2:124M --micro-batch 2 --recompute none --attention own --print-memory 1 "${layout[@]}")
        expect 0 " ranks" "$train" "${of_run[@]}"
        cp "$work/out" "$work/cuda"
        expect 0 " ranks" "$on_cpu" "${of_run[@]}"
        cmp "$work/cuda" "$work/out"
        verdict $? "memory is that of the CPU build: ${layout[*]}"
    done <<'END'
--processes 1
--processes 8 --zero 1 --optimizer muon
--processes 8 --zero 3 --grad-dtype bf16
--processes 8 --zero 1 --grad-compression int8
--processes 8 --tp 4 --pp 2
--processes 8 --pp 4 --pp-schedule zb
--processes 8 --cp 4 --zero 2
--processes 8 --experts 8 --ep 4
--processes 8 --zero-group 4 --local-steps 8
END
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
