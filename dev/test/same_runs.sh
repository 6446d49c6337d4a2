#!/usr/bin/env bash
# Shows whether a change of the code changed what is trained, saved, written or measured, or what devices are given to do:
# 75 fixed runs in each precision, and six uses of three of their models. FOLDER gets of each run the metrics without times
# and memory, its samples, and a hash of every file of its checkpoints; of each generation its text, of each evaluation what
# it printed:
#
#   dev/test/same_runs.sh /tmp/before [BUILD]   # the build before the change (a folder such as ../old/build)
#   dev/test/same_runs.sh /tmp/after            # the build after it, on the same machine
#   diff -r /tmp/before /tmp/after              # nothing: not a bit of a loss, a norm or a checkpoint has changed
#
# It also gets the operations of each run (PRECISION-operations): of two steps, a validation and a sample, and where there is
# one rank of `generate`, the list of each stream of each rank, and the order in which the host launches them
# (llmc/plan/operation_lists_host_test.cpp). OPERATIONS_ALONE=1 writes nothing else, in seconds.
#
# A tiny model, one or two seconds a run: 1 to 8 ranks; ZeRO 0 to 3, groups of ZeRO, tp, pp, cp and all together; every
# level of recompute, on one rank and with tp; chunks of rows, ranks of tp that do not share rows; gradients of weights
# that are made later, with each axis; models as Llama's, Qwen3's and OLMo2's, norms after, squared ReLU; Muon and LAMB;
# growing sequences, masked documents, an average of the weights; experts, with a capacity, shared ones, dealt out; local
# steps, compressed and late gradients. Samples and questions with tp, pp and cp. Of three of these models text, by cached
# generation, and losses and multiple-choice questions by `evaluate`.
folder=${1:?expected the folder to write to}
mkdir -p "$folder" && folder=$(realpath "$folder") || exit 70
build=$(realpath "${2:-$(dirname "$0")/../../build}") || exit 70
source "$(dirname "$0")/common.sh"
tokenize=${TOKENIZE:-$build/$device$variant/tokenize}
operations_alone=${OPERATIONS_ALONE:-}
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
    local to=$folder/${1##*/}
    awk '/^generating/ { fences = 2 } fences > 0; /^---$/ { fences-- }' "$1.log" >"$to.samples"
    [ -s "$to.samples" ] || rm "$to.samples"
    without_times_or_memory "$1/metrics.jsonl" >"$to.jsonl" && (cd "$1" && sha256sum step_*/*) >"$to.checkpoints"
}
of_all=(--train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 4 --heads 2 --channels 48
    --seq-len 32 --micro-batch 2 --max-steps 12 --lr 1e-3 --warmup 3 --final-lr-frac 0.1 --weight-decay 0.1 --val-every 6
    --val-max-batches 6 --sample-every 0)
run() {   # NAME RANKS ARGUMENTS...
    local out=$work/$precision-$1 ranks=$2
    echo "$1 $2 --vocab-size 257 ${of_all[*]} ${*:3}" >>"$work/$precision-runs"
    [ -z "$operations_alone" ] || return 0
    shift 2
    scripts/launch.sh -n "$ranks" "$build/$device-$precision$variant/train_gpt" "${of_all[@]}" "$@" \
        --output-dir "$out" --checkpoint-every 6 >"$out.log" 2>&1 && saved "$out"
    verdict $? "${out##*/}: $(tail -n 3 "$out.log")"
}

printed() {   # VERB NAME ARGUMENTS...: what a verb prints, of the model that run NAME has saved
    local of=$precision-$2
    [ -z "$operations_alone" ] || return 0
    "$build/$device-$precision$variant/train_gpt" "$1" --model "$work/$of" "${@:3}" 2>"$work/$of.$1.log" |
        grep -av 'device memory' >"$folder/$of.$1"
    verdict $? "$of, $1: $(tail -n 3 "$work/$of.$1.log")"
}

operations() {   # of all runs so far
    local lists=$folder/$precision-operations
    rm -rf "$lists"
    OPERATION_LISTS=$lists "$build/$device-$precision$variant/unit_test" --no-skip -tc='operation lists: of runs*' \
        <"$work/$precision-runs" >"$work/lists.log" 2>&1 && [ -d "$lists" ]
    verdict $? "$precision, operations: $(grep -v '^$' "$work/lists.log" | tail -n 20)"
}

rotary=(--norm rms --positions rotary --mlp swiglu --bias 0 --head-size 32 --mlp-width 64)
llama=("${rotary[@]}" --kv-heads 1)
wide=("${rotary[@]}" --channels 64 --heads 4 --kv-heads 2)
qwen3=("${wide[@]}" --qk-norm head)
olmo2=("${wide[@]}" --qk-norm row --norm-position after)
heads4=(--channels 64 --heads 4)
experts=(--experts 4 --experts-per-token 2 --expert-width 32 --aux-loss 0.01 --mlp swiglu)
documents=(--document-mask 1 --train-data "$work/documents/*train*.bin" --val-data "$work/documents/*val*.bin")
asked=(--sample-every 6 --sample-tokens 16 --hellaswag 1 --hellaswag-data "$work/questions.bin")
for precision in $precisions; do
    needs "$build/$device-$precision$variant/train_gpt" "$build/$device-$precision$variant/unit_test"
    run 1-rank 1 --recompute none
    run 1-rank-accumulated-block 1 --recompute block --total-batch 256
    run 1-rank-untied-no-masters 1 --recompute gelu --tie-embeddings 0 --master-weights 0
    run 1-rank-plain-gelu 1 --recompute gelu+norm --gelu-fusion 0 --attention own --z-loss 1e-3
    run 1-rank-relu2 1 --recompute gelu --mlp relu2 --grad-dtype "$precision" --total-batch 128
    run 1-rank-norms-after 1 --recompute none --norm-position after
    run 1-rank-norms-after-block 1 --recompute block --norm-position after --total-batch 128
    run zero0-accumulated 3 --zero 0 --recompute none --total-batch 384
    run zero0-block 3 --zero 0 --recompute block --total-batch 192
    run zero3 3 --zero 3 --recompute none --total-batch 192
    run zero3-accumulated-block 3 --zero 3 --recompute block --total-batch 384
    run zero3-groups 4 --zero 3 --zero-group 2 --total-batch 256
    run tp-zero1 4 --tp 2 --zero 1 --recompute gelu+norm --total-batch 256
    run tp-unchunked 2 --tp 2 --tp-chunks 1 --recompute none --total-batch 128
    run tp-2-chunks-block 2 --tp 2 --tp-chunks 2 --recompute block --total-batch 128
    run tp-8-chunks-asked 2 --tp 2 --tp-chunks 8 --recompute gelu "${asked[@]}"
    run tp-whole-rows 2 --tp 2 --sequence-parallel 0 --recompute none --total-batch 128
    run tp-whole-rows-block-asked 2 --tp 2 --sequence-parallel 0 --recompute block "${asked[@]}"
    run tp-whole-rows-relu2-zero2 4 --tp 2 --sequence-parallel 0 --recompute gelu+norm --mlp relu2 --zero 2 --total-batch 256
    run tp-norms-after 2 --tp 2 --norm-position after --recompute gelu
    run tp-whole-rows-norms-after 2 --tp 2 --sequence-parallel 0 --norm-position after --recompute gelu+norm
    run tp-muon-zero2 4 --tp 2 --optimizer muon --zero 2 --total-batch 256
    run tp-lengths 2 --tp 2 --seq-len-schedule 1:8,5:16,9:32
    run pp-gpipe-asked 2 --pp 2 --pp-schedule gpipe --recompute gelu+norm --total-batch 256 "${asked[@]}"
    run pp-warmup 2 --pp 2 --pp-warmup 1 --recompute block --total-batch 256
    run pp-zb-zero3 4 --pp 2 --pp-schedule zb --zero 3 --recompute none --total-batch 512
    run pp-interleaved 2 --pp 2 --pp-schedule interleaved --pp-chunks 2 --recompute gelu --total-batch 256
    run pp-zb-norms-after 2 --pp 2 --pp-schedule zb --norm-position after --recompute none --total-batch 256
    run tp-pp 4 --tp 2 --pp 2 --recompute none --total-batch 256
    run tp-pp-interleaved 4 --tp 2 --pp 2 --pp-schedule interleaved --pp-chunks 2 --recompute block --total-batch 256
    run tp-pp-zb 4 --tp 2 --pp 2 --pp-schedule zb --recompute none --total-batch 256
    run tp-pp-zb-gelu-norm 4 --tp 2 --tp-chunks 2 --pp 2 --pp-schedule zb --recompute gelu+norm --total-batch 256
    run tp-pp-zb-whole-rows 4 --tp 2 --sequence-parallel 0 --pp 2 --pp-schedule zb --recompute gelu --total-batch 256
    run cp-ring-asked 2 --cp 2 --recompute none --total-batch 128 "${asked[@]}"
    run cp-ulysses-block 2 --cp 2 --cp-mode ulysses --recompute block --total-batch 128
    run cp-hybrid-zero2 4 --cp 4 --cp-mode hybrid --cp-ulysses 2 --zero 2 --recompute gelu+norm --total-batch 128
    run cp-ring-pp-zb 4 --cp 2 --pp 2 --pp-schedule zb --recompute none --total-batch 256
    run tp-cp-ring 4 --tp 2 --cp 2 --recompute none --total-batch 128
    run tp-cp-ulysses 4 "${heads4[@]}" --tp 2 --cp 2 --cp-mode ulysses --recompute none --total-batch 128
    run tp-cp-hybrid 8 "${heads4[@]}" --tp 2 --cp 4 --cp-mode hybrid --cp-ulysses 2 --recompute gelu --total-batch 128
    run tp-pp-cp-zero3 8 --tp 2 --pp 2 --cp 2 --pp-schedule zb --zero 3 --recompute block --total-batch 256
    run llama 1 "${llama[@]}" --tie-embeddings 0 --total-batch 128
    run llama-tp-cp-zero2 4 "${llama[@]}" --tp 2 --cp 2 --zero 2 --recompute block --total-batch 128
    run llama-tp-pp-zb 4 "${wide[@]}" --tp 2 --pp 2 --pp-schedule zb --recompute none --total-batch 256
    run qwen3 1 "${qwen3[@]}" --ema 0.9
    run qwen3-tp-pp 4 "${qwen3[@]}" --tp 2 --pp 2 --recompute gelu+norm --total-batch 256
    run qwen3-tp-whole-rows 2 "${qwen3[@]}" --tp 2 --sequence-parallel 0 --recompute none
    run qwen3-cp-ulysses 2 "${qwen3[@]}" --cp 2 --cp-mode ulysses --recompute gelu
    run olmo2 1 "${olmo2[@]}" --recompute none
    run olmo2-tp 2 "${olmo2[@]}" --tp 2 --recompute none --total-batch 128
    run olmo2-tp-cp-block 4 "${olmo2[@]}" --tp 2 --cp 2 --recompute block --total-batch 128
    run olmo2-tp-whole-rows-pp-zb 4 "${olmo2[@]}" --tp 2 --sequence-parallel 0 --pp 2 --pp-schedule zb --recompute gelu \
        --total-batch 256
    run muon 1 --optimizer muon
    run muon-zero3 3 --optimizer muon --zero 3 --total-batch 192
    run lamb-zero1 2 --optimizer lamb --zero 1 --total-batch 128
    run lengths 1 --seq-len-schedule 1:8,5:16,9:32
    run document-mask 1 "${documents[@]}"
    run document-mask-tp-cp 4 "${documents[@]}" --tp 2 --cp 2 --recompute gelu --total-batch 128
    run document-mask-llama-cp-ulysses 2 "${documents[@]}" "${wide[@]}" --cp 2 --cp-mode ulysses --total-batch 128
    run experts 1 "${experts[@]}"
    run experts-capacity-block 1 "${experts[@]}" --capacity-factor 1 --recompute block --total-batch 128
    run experts-sigmoid-gelu 1 "${experts[@]}" --router sigmoid --shared-experts 1 --mlp gelu
    run experts-tp-zero2 4 "${experts[@]}" --shared-experts 1 --tp 2 --zero 2 --recompute gelu+norm --total-batch 256
    run experts-tp-whole-rows 2 "${experts[@]}" --shared-experts 1 --tp 2 --sequence-parallel 0 --recompute block
    run experts-ep 2 "${experts[@]}" --ep 2 --zero 1 --total-batch 128
    run experts-ep-capacity-block 2 "${experts[@]}" --ep 2 --ep-chunks 1 --capacity-factor 1 --recompute block --total-batch 256
    run experts-ep-tp-shared 4 "${experts[@]}" --shared-experts 1 --ep 4 --tp 2 --zero 3 --recompute gelu --total-batch 256
    run experts-ep-pp-zb 4 "${experts[@]}" --shared-experts 1 --ep 2 --pp 2 --pp-schedule zb --recompute none --total-batch 512
    run local-steps 2 --local-steps 2 --zero-group 1 --outer-compression int8 --total-batch 128
    run local-steps-fragments 4 --local-steps 4 --outer-fragments 3 --outer-delay 1 --outer-blend 0.5 --zero-group 2 --zero 3 \
        --total-batch 256
    run local-steps-largest-tp 4 --tp 2 --local-steps 2 --zero-group 1 --outer-compression topk --total-batch 256
    run gradients-int8-zero1 2 --grad-compression int8 --zero 1 --total-batch 256
    run gradients-largest-tp 4 --tp 2 --grad-compression topk --grad-topk 0.2 --total-batch 256
    run gradients-factors-llama 2 "${llama[@]}" --grad-compression powersgd --grad-rank 2 --grad-compression-start 4 --total-batch 128
    run gradients-late-zero1-tp 4 --tp 2 --staleness 1 --zero 1 --total-batch 256
    operations
    for model in 1-rank qwen3 experts; do
        printed generate "$model" --prompt '100 ' --tokens 100 --temperature 0.2 --seed 5 --stop-at-end 0
        printed evaluate "$model" --val-data "$work/data/*val*.bin" --val-max-batches 8 --evaluate "hellaswag=$work/questions.bin"
    done
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
