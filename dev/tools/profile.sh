#!/usr/bin/env bash
# Three steps under Nsight Systems, for `make profile`: dev/tools/profile.sh TRAIN_GPT TOKENIZE [OPTION]...
#
# Trains GPT-2's 124M on counted numbers, with the given options of train_gpt instead of or besides its own. A timeline and
# tables of kernels and of the program's own ranges (profile_range.h) are left in build/profile/. The first step allocates
# and looks for algorithms; the later ones are what to look at. Not run on a GPU yet.
set -euo pipefail
cd "$(dirname "$0")/../.."
train_gpt=$1 tokenize=$2
shift 2
nsys=${NSYS:-$(command -v nsys || ls -d /usr/local/cuda/bin/nsys /opt/nvidia/nsight-systems*/*/bin/nsys 2>/dev/null | head -n 1 || true)}
if ! command -v "${nsys:-nsys}" >/dev/null; then
    echo "make profile needs NVIDIA's Nsight Systems: there is no ${nsys:-nsys on the PATH or below /usr/local/cuda}." >&2
    echo "Install nsight-systems-cli from NVIDIA's repository, or set NSYS=/path/to/nsys." >&2
    exit 69
fi
out=build/profile
mkdir -p $out
if [ ! -e $out/data/manifest.json ]; then
    seq 1 200000 >$out/numbers.txt
    "$tokenize" --tokenizer bytes --quiet --output $out/data --val-tokens 3000 $out/numbers.txt
fi
"$nsys" profile --trace=cuda,nvtx,cublas --sample=none --cpuctxsw=none --force-overwrite=true --output $out/three_steps \
    "$train_gpt" --train-data "$out/data/*train*.bin" --model gpt2:124M --vocab-size 50257 --seq-len 1024 \
    --micro-batch 16 --max-steps 3 --val-every 0 --sample-every 0 --schedule constant "$@"
for report in nvtx_sum cuda_gpu_kern_sum; do
    "$nsys" stats --force-export=true --report $report --output $out/$report --format column \
        $out/three_steps.nsys-rep >/dev/null
done
echo "timeline: $out/three_steps.nsys-rep (nsys-ui opens it); tables: $out/*_sum*.txt"
