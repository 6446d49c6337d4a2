#!/usr/bin/env bash
# Shows whether a change of the code changed what is trained, saved, written or measured: 24 fixed runs in each precision,
# and six uses of three of their models. FOLDER gets of each run the metrics without times and memory, and a hash of every
# file of its checkpoints; of each generation its text, of each evaluation what it printed:
#
#   dev/test/same_runs.sh /tmp/before [BUILD]   # the build before the change (a folder such as ../old/build)
#   dev/test/same_runs.sh /tmp/after            # the build after it, on the same machine
#   diff -r /tmp/before /tmp/after              # nothing: not a bit of a loss, a norm or a checkpoint has changed
#
# A tiny model, about a second a run: 1 to 8 ranks; ZeRO 0 to 3, groups of ZeRO, tp, pp (zb, interleaved), cp and all
# together; every level of recompute, accumulation, an untied head, no master weights; models as Llama's and Qwen3's;
# Muon and LAMB; growing sequences, masked documents, an average of the weights; a mixture of experts, on one rank and
# with ep. Of three of these models text, by cached generation, and losses and multiple-choice questions by `evaluate`.
folder=${1:?expected the folder to write to}
mkdir -p "$folder" && folder=$(realpath "$folder") || exit 70
build=$(realpath "${2:-$(dirname "$0")/../../build}") || exit 70
source "$(dirname "$0")/common.sh"
tokenize=${TOKENIZE:-$build/$device$variant/tokenize}
needs "$tokenize"

numbers_as_data 8000 2000
"$tokenize" --tokenizer bytes --quiet --output "$work/documents" --val-tokens 2000 --separator '0\n' "$work/numbers.txt" >/dev/null ||
    exit 70
for i in 10 20 30 40 50; do
    echo "{\"ctx\":\"$i\",\"endings\":[\"$((i + 1))\",\"$((i - 1))\",\"$i\",\"x\"],\"label\":0}"
done >"$work/questions.jsonl"
"$tokenize" --tokenizer bytes --quiet --questions hellaswag --output "$work/questions.bin" "$work/questions.jsonl" >/dev/null ||
    exit 70

saved() {   # OUTPUT-FOLDER: what is left of a run, without what two equal runs do not share
    without_times_or_memory "$1/metrics.jsonl" >"$folder/${1##*/}.jsonl" &&
        (cd "$1" && sha256sum step_*/*) >"$folder/${1##*/}.checkpoints"
}
run() {   # NAME RANKS ARGUMENTS...
    local out=$work/$precision-$1 ranks=$2
    shift 2
    scripts/launch.sh -n "$ranks" "$build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" \
        --val-data "$work/data/*val*.bin" --layers 4 --heads 2 --channels 48 --seq-len 32 --micro-batch 2 \
        --max-steps 12 --lr 1e-3 --warmup 3 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 6 --val-max-batches 6 \
        --sample-every 0 --checkpoint-every 6 --output-dir "$out" "$@" >"$out.log" 2>&1 && saved "$out"
    verdict $? "${out##*/}: $(tail -n 3 "$out.log")"
}

printed() {   # VERB NAME ARGUMENTS...: what a verb prints, of the model that run NAME has saved
    local of=$precision-$2
    "$build/$device-$precision$variant/train_gpt" "$1" --model "$work/$of" "${@:3}" 2>"$work/$of.$1.log" |
        grep -av 'device memory' >"$folder/$of.$1"
    verdict $? "$of, $1: $(tail -n 3 "$work/$of.$1.log")"
}

rotary=(--norm rms --positions rotary --mlp swiglu --bias 0 --head-size 32 --mlp-width 64)
llama=("${rotary[@]}" --kv-heads 1)
qwen3=("${rotary[@]}" --channels 64 --heads 4 --kv-heads 2 --qk-norm head)
experts=(--experts 4 --experts-per-token 2 --expert-width 32 --aux-loss 0.01 --mlp swiglu)
for precision in $precisions; do
    needs "$build/$device-$precision$variant/train_gpt"
    run 1-rank 1 --recompute none
    run 1-rank-accumulated-block 1 --recompute block --total-batch 256
    run 1-rank-untied-no-masters 1 --recompute gelu --tie-embeddings 0 --master-weights 0
    run zero0-accumulated 3 --zero 0 --recompute none --total-batch 384
    run zero0-block 3 --zero 0 --recompute block --total-batch 192
    run zero3 3 --zero 3 --recompute none --total-batch 192
    run zero3-accumulated-block 3 --zero 3 --recompute block --total-batch 384
    run tp-zero1 4 --tp 2 --zero 1 --recompute gelu+norm --total-batch 256
    run pp-zb-zero3 4 --pp 2 --pp-schedule zb --zero 3 --recompute none --total-batch 512
    run pp-interleaved 2 --pp 2 --pp-schedule interleaved --pp-chunks 2 --recompute gelu --total-batch 256
    run cp-hybrid-zero2 4 --cp 4 --cp-mode hybrid --cp-ulysses 2 --zero 2 --recompute gelu+norm --total-batch 128
    run tp-pp-cp-zero3 8 --tp 2 --pp 2 --cp 2 --pp-schedule zb --zero 3 --recompute block --total-batch 256
    run zero3-groups 4 --zero 3 --zero-group 2 --total-batch 256
    run llama 1 "${llama[@]}" --tie-embeddings 0 --total-batch 128
    run llama-tp-cp-zero2 4 "${llama[@]}" --tp 2 --cp 2 --zero 2 --recompute block --total-batch 128
    run qwen3 1 "${qwen3[@]}" --ema 0.9
    run qwen3-tp-pp 4 "${qwen3[@]}" --tp 2 --pp 2 --recompute gelu+norm --total-batch 256
    run muon 1 --optimizer muon
    run muon-zero3 3 --optimizer muon --zero 3 --total-batch 192
    run lamb-zero1 2 --optimizer lamb --zero 1 --total-batch 128
    run lengths 1 --seq-len-schedule 1:8,5:16,9:32
    run document-mask 1 --document-mask 1 --train-data "$work/documents/*train*.bin" --val-data "$work/documents/*val*.bin"
    run experts 1 "${experts[@]}"
    run experts-ep 2 "${experts[@]}" --ep 2 --zero 1 --total-batch 128
    for model in 1-rank qwen3 experts; do
        printed generate "$model" --prompt '100 ' --tokens 100 --temperature 0.2 --seed 5 --stop-at-end 0
        printed evaluate "$model" --val-data "$work/data/*val*.bin" --val-max-batches 8 --evaluate "hellaswag=$work/questions.bin"
    done
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
