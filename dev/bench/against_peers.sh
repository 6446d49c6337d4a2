#!/usr/bin/env bash
# A training step of GPT-2 124M in train_gpt, llm.c and PyTorch on this machine's CPU, in turns, in one run; or of Llama
# 125M in train_gpt, PyTorch and transformers:
#
#   dev/bench/against_peers.sh --llmc DIR [--shape BxT]... [--rounds N]
#   dev/bench/against_peers.sh --llama [--shape BxT]... [--rounds N]
#
# Prints a table in Markdown: tokens per second, the median step with the least and the most, and ratios. A row comes as
# soon as its program has had its last turn, with ratios to programs that had theirs; each turn before that is a line on
# stderr. A program's first step is not counted. Default: --shape 4x64 --rounds 3, a few minutes; 8x1024 takes llm.c
# minutes a step.
#
# DIR is a checkout of llm.c whose train_gpt2.c you have made settable and built (make train_gpt2). This script neither
# changes nor builds it. Three lines of its main() differ:
#   int B = atoi(getenv("BATCH"));
#   int T = atoi(getenv("SEQ"));
#   for (int step = 0; step <= atoi(getenv("STEPS")); step++) {
# Without --llmc, or without PyTorch, the others are compared. PyTorch is that of `python3`. Where the processor has no
# instructions for bf16, PyTorch emulates them, many times as slow as fp32: its rows in bf16 are left out. train_gpt
# multiplies in fp32 there.
#
# train_gpt and llm.c read the same model file (random weights) and the same tokens, bytes of headers; PyTorch has random
# ones. llm.c knows fp32 only.
# Needs build/cpu-bf16/train_gpt, build/cpu-fp32/train_gpt and build/cpu/tokenize (or BUILD=folder of them).
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}") here=$PWD
llmc='' llama='' shapes=() rounds=3
while [ $# -gt 0 ]; do
    case "$1" in
        --llmc) llmc=$(realpath "$2")/train_gpt2; shift 2 ;;
        --llama) llama=yes; shift ;;
        --shape) shapes+=("$2"); shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        -h|--help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
        *) echo "unknown option $1; see --help" >&2; exit 64 ;;
    esac
done
[ ${#shapes[@]} -gt 0 ] || shapes=(4x64)
for shape in "${shapes[@]}"; do
    [[ $shape =~ ^[1-9][0-9]*x[1-9][0-9]*$ ]] || { echo "--shape $shape: expected BxT, as 4x64" >&2; exit 64; }
done
for program in "$build"/cpu-{bf16,fp32}/train_gpt "$build/cpu/tokenize" ${llmc:+"$llmc"}; do
    [ -x "$program" ] || { echo "no $program; see --help" >&2; exit 69; }
done
cpuinfo=${CPUINFO:-/proc/cpuinfo}   # another one for tests
torch=''
if ! python3 -c 'import torch' 2>/dev/null; then
    echo "(python3 has no PyTorch: left out)"
elif grep -qwE 'avx512_bf16|amx_bf16|bf16' "$cpuinfo"; then
    torch='fp32 bf16'
else
    torch=fp32
    echo "(PyTorch in bf16 is left out: this processor has no instructions for it)"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# where llm.c looks, from its working folder
data=$work/dev/data/tinyshakespeare
mkdir -p "$data" "$work/turns" "$work/times"   # of programs that have turns to come, and of those that had their last
find /usr/include -name '*.h' | LC_ALL=C sort >"$work/files"
"$build/cpu/tokenize" --quiet --tokenizer bytes --files-from "$work/files" --max-bytes 2MB --val-tokens 100000 \
    --output "$work/tokens" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 70; }
cp "$work"/tokens/train*.bin "$data/tiny_shakespeare_train.bin"
cp "$work"/tokens/val*.bin "$data/tiny_shakespeare_val.bin"
ours() {   # PRECISION, options
    "$build/cpu-$1/train_gpt" --train-data "$data/tiny_shakespeare_train.bin" --val-every 0 --sample-every 0 \
        --recompute none "${@:2}"
}
model=llama:125M peer=transformers
[ -n "$llama" ] || model=$work/gpt2_124M.bin peer=llm.c
[ -n "$llama" ] || ours fp32 --model d12 --micro-batch 1 --seq-len 16 --max-steps 1 --lr 0 --export-llmc "$work/gpt2_124M.bin" \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 70; }

# The milliseconds of a program's steps of B x T.
steps_of() {   # PROGRAM PRECISION
    case $1 in
        llm.c)   # its STEPS is the number of the last step, from 0
            (cd "$work" && BATCH=$B SEQ=$T STEPS=2 OMP_NUM_THREADS=$(nproc) "$llmc") |
                sed -nE 's/^step [0-9]+: .*took ([0-9.]+) ms.*/\1/p' ;;
        train_gpt)
            ours "$2" --model "$model" --micro-batch "$B" --seq-len "$T" --max-steps 5 --lr 1e-4 |
                sed -nE 's/^step .*\| *([0-9.]+) ms \|.*/\1/p' ;;
        PyTorch | transformers)
            local which=(${llama:+--model llama:125M})
            [ "$1" = PyTorch ] || which+=(--transformers)
            python3 "$here/dev/bench/pytorch_step.py" "${which[@]}" --batch "$B" --seq-len "$T" --steps 5 --precision "$2" |
                sed -nE 's/^step .*, ([0-9.]+) ms$/\1/p' ;;
    esac
}

median() { sort -g "$1" | awk '{ t[NR] = $1 } END { if (NR) print (t[int((NR + 1) / 2)] + t[int(NR / 2) + 1]) / 2 }'; }
ratio() {   # MEDIAN FILE: how many times as fast as the peer, if there is one
    [ -s "$2" ] && awk -v ours="$1" -v peer="$(median "$2")" 'BEGIN { printf "%.2fx", peer / ours }'
}

processor=$(sed -nE 's/^model name\s*: //p' "$cpuinfo" | head -n 1)
echo "$(date -u +'%F %H:%M') UTC, ${processor:-unknown processor}, $(nproc) cores, load average $(cut -d' ' -f1-3 /proc/loadavg) before, $rounds rounds"
echo
echo "| B | T | program | precision | tokens/s | step ms, median (least to most) | against $peer | against PyTorch |"
echo "|---|---|---|---|---|---|---|---|"
row() {   # PROGRAM PRECISION
    local times="$work/times/$1 $2" against ms
    against="$work/times/$peer $([ -n "$llama" ] && echo "$2" || echo fp32)"   # llm.c knows fp32 only
    ms=$(median "$times")
    echo "| $B | $T | $1 | $2 | $(awk -v n=$((B * T)) -v ms="$ms" 'BEGIN { printf "%.1f", n / ms * 1e3 }') |" \
        "$(printf '%.0f (%.0f to %.0f), %d steps' "$ms" "$(sort -g "$times" | head -n 1)" "$(sort -g "$times" | tail -n 1)" \
            "$(wc -l <"$times")") | $(ratio "$ms" "$against") | $(ratio "$ms" "$work/times/PyTorch $2") |"
}

# in the order of turns
programs=()
[ -z "$llmc" ] || programs+=('llm.c fp32')
for precision in fp32 bf16; do
    if [[ " $torch " == *" $precision "* ]]; then
        [ -z "$llama" ] || programs+=("transformers $precision")
        programs+=("PyTorch $precision")
    fi
    programs+=("train_gpt $precision")
done
for shape in "${shapes[@]}"; do
    B=${shape%x*} T=${shape#*x}
    rm -f "$work"/turns/* "$work"/times/*
    for ((round = 1; round <= rounds; round++)); do
        for name in "${programs[@]}"; do
            steps_of "${name% *}" "${name#* }" | tail -n +2 >"$work/turn"   # without the first step
            [ -s "$work/turn" ] || { echo "$name of ${B}x$T made no step" >&2; exit 70; }
            cat "$work/turn" >>"$work/turns/$name"
            if [ "$round" -lt "$rounds" ]; then
                echo "(${B}x$T, turn $round of $rounds, $name: $(median "$work/turn") ms)" >&2
            else
                mv "$work/turns/$name" "$work/times"
                row "${name% *}" "${name#* }"
            fi
        done
    done
done
echo
echo "load average $(cut -d' ' -f1-3 /proc/loadavg) after"
