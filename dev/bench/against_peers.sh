#!/usr/bin/env bash
# A training step of GPT-2 124M in train_gpt, llm.c and PyTorch on this machine's CPU, in turns, in one run; or of Llama
# 125M in train_gpt, PyTorch and transformers:
#
#   dev/bench/against_peers.sh --llmc DIR [--shape BxT]... [--rounds N]
#   dev/bench/against_peers.sh --llama [--shape BxT]... [--rounds N]
#
# Prints a table in Markdown: tokens per second, the median step with the least and the most, and ratios. A program's first
# step is not counted. Default: --shape 4x64 --rounds 3, a few minutes; 8x1024 takes llm.c minutes a step.
#
# DIR is a checkout of llm.c whose train_gpt2.c you have made settable and built (make train_gpt2). This script neither
# changes nor builds it. Three lines of its main() differ:
#   int B = atoi(getenv("BATCH"));
#   int T = atoi(getenv("SEQ"));
#   for (int step = 0; step <= atoi(getenv("STEPS")); step++) {
# Without --llmc, or without PyTorch, the others are compared. PyTorch is that of `python3`.
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
torch=''
python3 -c 'import torch' 2>/dev/null && torch=yes || echo "(python3 has no PyTorch: left out)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# where llm.c looks, from its working folder
data=$work/dev/data/tinyshakespeare
mkdir -p "$data" "$work/times"
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

theirs() {   # PROGRAM B T STEPS options
    python3 "$here/dev/bench/pytorch_step.py" ${llama:+--model llama:125M} --batch "$2" --seq-len "$3" --steps "$4" \
        --precision "$precision" "${@:5}" | sed -nE 's/^step .*, ([0-9.]+) ms$/\1/p' | tail -n +2 >>"$work/times/$1 $precision"
}

# One turn of each; its steps' milliseconds, but for the first, are added to times/<program> <precision>.
turn() {   # B T STEPS
    local precision
    if [ -n "$llmc" ]; then   # its STEPS is the number of the last step, from 0
        (cd "$work" && BATCH=$1 SEQ=$2 STEPS=2 OMP_NUM_THREADS=$(nproc) "$llmc") |
            sed -nE 's/^step [0-9]+: .*took ([0-9.]+) ms.*/\1/p' | tail -n +2 >>"$work/times/llm.c fp32"
    fi
    for precision in bf16 fp32; do
        ours $precision --model "$model" --micro-batch "$1" --seq-len "$2" --max-steps "$3" --lr 1e-4 |
            sed -nE 's/^step .*\| *([0-9.]+) ms \|.*/\1/p' | tail -n +2 >>"$work/times/train_gpt $precision"
        [ -z "$torch" ] || theirs PyTorch "$@"
        [ -z "$torch" ] || [ -z "$llama" ] || theirs transformers "$@" --transformers
    done
}

median() { sort -g "$1" | awk '{ t[NR] = $1 } END { if (NR) print (t[int((NR + 1) / 2)] + t[int(NR / 2) + 1]) / 2 }'; }
ratio() {   # MEDIAN FILE: how many times as fast as the peer, if there is one
    [ -s "$2" ] && awk -v ours="$1" -v peer="$(median "$2")" 'BEGIN { printf "%.2fx", peer / ours }'
}

processor=$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
echo "$(date -u +'%F %H:%M') UTC, ${processor:-unknown processor}, $(nproc) cores, load average $(cut -d' ' -f1-3 /proc/loadavg) before, $rounds rounds"
echo
echo "| B | T | program | precision | tokens/s | step ms, median (least to most) | against $peer | against PyTorch |"
echo "|---|---|---|---|---|---|---|---|"
for shape in "${shapes[@]}"; do
    B=${shape%x*} T=${shape#*x}
    rm -f "$work"/times/*
    for ((round = 0; round < rounds; round++)); do turn "$B" "$T" 5; done
    for name in 'llm.c fp32' 'transformers fp32' 'transformers bf16' 'PyTorch fp32' 'PyTorch bf16' 'train_gpt fp32' 'train_gpt bf16'; do
        times=$work/times/$name precision=${name#* }
        [ -s "$times" ] || continue
        against="$work/times/$peer $([ -n "$llama" ] && echo "$precision" || echo fp32)"   # llm.c knows fp32 only
        ms=$(median "$times")
        echo "| $B | $T | ${name% *} | $precision | $(awk -v n=$((B * T)) -v ms="$ms" 'BEGIN { printf "%.1f", n / ms * 1e3 }') |" \
            "$(printf '%.0f (%.0f to %.0f), %d steps' "$ms" "$(sort -g "$times" | head -n 1)" "$(sort -g "$times" | tail -n 1)" \
                "$(wc -l <"$times")") | $(ratio "$ms" "$against") | $(ratio "$ms" "$work/times/PyTorch $precision") |"
    done
done
echo
echo "load average $(cut -d' ' -f1-3 /proc/loadavg) after"
