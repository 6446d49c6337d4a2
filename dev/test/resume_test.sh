#!/usr/bin/env bash
# A run that was cut and resumed equals the uncut one, character for character in metrics.jsonl but for times; and one that
# was killed at any moment resumes from a checkpoint that is intact.
source "$(dirname "$0")/common.sh"
needs "$tokenize"

same() { cmp <(without_times "$1/metrics.jsonl") <(without_times "$2/metrics.jsonl") && cmp "$1/main.log" "$2/main.log"; }

numbers_as_data 4000 2000
train() {   # PRECISION FOLDER ARGUMENTS...
    local precision=$1 out=$2
    shift 2
    ${run_as:-} "build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" \
        --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --total-batch 256 --max-steps 20 --lr 1e-2 \
        --warmup 3 --final-lr-frac 0 --weight-decay 0.1 --val-every 5 --val-max-batches 4 --sample-every 0 --sample-tokens 4 \
        --output-dir "$out" "$@" >>"$out.log" 2>&1
}

# cut NAME PRECISION ARGUMENTS...: 20 steps at once, and cut after 7 and 12
cut() {
    local name=$1 precision=$2 out=$work/$1-$2
    shift 2
    train "$precision" "$out" "$@" && train "$precision" "$out-cut" --stop-after 7 "$@" &&
        train "$precision" "$out-cut" --resume --stop-after 12 "$@" && train "$precision" "$out-cut" --resume "$@"
    verdict $? "$precision, $name: runs finish $(tail -n 3 "$out.log" "$out-cut.log")"
    same "$out" "$out-cut"
    verdict $? "$precision, $name: resumed equals uncut"
}
for precision in $precisions; do
    cut plain $precision
    cut "recompute" $precision --recompute block --skip-loss-z 6
    cut "all at once" $precision --master-weights 0 --recompute block --attention own --sample-every 3 --seed 7
    run_as="scripts/launch.sh -n 3" cut "3 ranks" $precision --total-batch 384 --zero 2 --max-steps 14
    run_as="scripts/launch.sh -n 3" cut "3 ranks, untied, RMSNorm" $precision --total-batch 384 --zero 2 --max-steps 14 --tie-embeddings 0 \
        --norm rms
    run_as="scripts/launch.sh -n 2" cut "2 replicas of local steps" $precision --local-steps 5 --zero-group 1 --ema 0.9 --check-replicas 1
    run_as="scripts/launch.sh -n 2" cut "2 ranks, gradients a step late" $precision --staleness 1 --zero 1 --ema 0.9 --check-replicas 1
    run_as="scripts/launch.sh -n 2" cut "2 ranks, gradients in 8 bits" $precision --grad-compression int8 --zero 1 --check-replicas 1
    run_as="scripts/launch.sh -n 2" cut "2 ranks, the largest gradients" $precision --grad-compression topk --grad-topk 0.2 --check-replicas 1
    run_as="scripts/launch.sh -n 2" cut "2 ranks, thin factors after 7 steps" $precision --grad-compression powersgd --grad-rank 2 \
        --grad-compression-start 7 --zero 1 --check-replicas 1
    run_as="scripts/launch.sh -n 2" cut "2 replicas that send 8 bits" $precision --local-steps 5 --zero-group 1 --outer-compression int8
    run_as="scripts/launch.sh -n 2" cut "2 replicas that send Muon's ways in 2 bits" $precision --local-steps 5 --zero-group 1 \
        --outer-compression int2 --optimizer muon
done
case $precisions in *bf16*)
    cut "stochastic rounding" bf16 --master-weights 0
    cut "bf16 gradients" bf16 --grad-dtype bf16 --recompute gelu+norm
    cut "all in bf16" bf16 --master-weights 0 --moments bf16 --grad-dtype bf16 --recompute block --attention own --sample-every 3 ;;
esac
precision=${precisions##* }   # of the rest
plain=$work/plain-$precision

# retention: the newest two, and every tenth step
train "$precision" "$work/kept" --checkpoint-every 2 --keep-checkpoints 2 --major-checkpoint-every 10
[ "$(cd "$work/kept" && echo step_*)" = "step_00000010 step_00000018 step_00000020" ]
verdict $? "retention left $(cd "$work/kept" && echo step_*)"

# a folder with checkpoints is not overwritten by accident, a run that is done stays so
train "$precision" "$work/kept"
[ $? -eq 64 ] && grep -q "Continue it with --resume" "$work/kept.log"
verdict $? "a new run into the folder of an old one is refused"
cp "$work/kept/metrics.jsonl" "$work/before" && train "$precision" "$work/kept" --resume && cmp "$work/before" "$work/kept/metrics.jsonl"
verdict $? "resuming a finished run changes nothing"

# weights are taken from a checkpoint that is intact, and from no other
from_model() {   # FOLDER
    "build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" \
        --model "$1" --seq-len 32 --micro-batch 2 --total-batch 64 --max-steps 1 --val-every 0 --sample-every 0 >"$work/model.log" 2>&1
}
cp -r "$work/kept/step_00000020" "$work/model"
from_model "$work/model"
verdict $? "a model from a checkpoint: $(tail -n 2 "$work/model.log")"
printf x | dd of="$work/model/model-00002-of-00004.safetensors" bs=1 seek=2000 conv=notrunc 2>/dev/null
from_model "$work/model"
[ $? -eq 65 ] && grep -q "model/model-00002-of-00004.safetensors: hash" "$work/model.log"
verdict $? "a model from a damaged checkpoint is refused: $(tail -n 2 "$work/model.log")"

# a run that begins with a model goes on without it
cp -r "$work/kept/step_00000020" "$work/begun-from"
for name in begun begun-cut; do
    "build/$device-$precision$variant/train_gpt" --train-data "$work/data/*train*.bin" --model "$work/begun-from" --seq-len 32 \
        --micro-batch 2 --total-batch 64 --max-steps 6 --val-every 0 --sample-every 0 --output-dir "$work/$name" \
        $([ $name = begun ] || echo --stop-after 3) >"$work/$name.log" 2>&1
done
rm -r "$work/begun-from"
scripts/launch.sh -n 2 "build/$device-$precision$variant/train_gpt" --resume 1 --output-dir "$work/begun-cut" --tp 2 --stop-after 3 >>"$work/begun-cut.log" 2>&1
verdict $? "resumed by two ranks without the model that it began with: $(tail -n 2 "$work/begun-cut.log")"
"build/$device-$precision$variant/train_gpt" --resume 1 --output-dir "$work/begun-cut" --tp 1 >>"$work/begun-cut.log" 2>&1 && same "$work/begun" "$work/begun-cut"
verdict $? "resumed without the model that it began with: $(tail -n 2 "$work/begun-cut.log")"

# a damaged checkpoint is passed over; where none is left, nothing starts silently from scratch
printf x | dd of="$work/kept/step_00000020/optimizer-00002-of-00004.safetensors" bs=1 seek=5000 conv=notrunc 2>/dev/null
from_model "$work/kept" && grep -q "Hugging Face model $work/kept/step_00000020" "$work/model.log" && ! grep -q "passed over" "$work/model.log"
verdict $? "for its model a checkpoint's optimizer state is not looked at: $(tail -n 2 "$work/model.log")"
train "$precision" "$work/kept" --resume --checkpoint-every 2 && grep -q "step_00000020/optimizer-00002-of-00004.safetensors: hash" "$work/kept.log" &&
    grep -q "resuming from $work/kept/step_00000018" "$work/kept.log" && cmp "$work/before" <(cat "$work/kept/metrics.jsonl") >/dev/null
same "$work/kept" "$plain"
verdict $? "resumed from the one before a damaged checkpoint"
[ -f "$work/kept/step_00000020.damaged/manifest.json" ] && grep -q "renamed to step_00000020.damaged" "$work/kept.log"
verdict $? "the damaged checkpoint is set aside: $(ls "$work/kept")"
# with --keep-checkpoints 1: beside a damaged file, an empty folder, a file and a link that leads nowhere
mv "$work/kept/step_00000020" "$work/kept/step_00000018" "$work"
for kind in file folder; do
    rm -rf "$work"/kept/step_*
    cp -r "$work/step_00000018" "$work/step_00000020" "$work/kept"
    truncate -s 100 "$work/kept/step_00000020/run.json"
    if [ $kind = folder ]; then mkdir "$work/kept/step_00000030"; else echo mine >"$work/kept/step_00000030"; fi
    ln -s nowhere "$work/kept/step_00000040"
    train "$precision" "$work/kept" --resume --checkpoint-every 1 --keep-checkpoints 1 --stop-after 19 &&
        train "$precision" "$work/kept" --resume --checkpoint-every 1 --keep-checkpoints 1 &&
        grep -q "resuming from $work/kept/step_00000019" "$work/kept.log" && same "$work/kept" "$plain" &&
        [ "$(ls -d "$work"/kept/step_????????)" = "$work/kept/step_00000019
$work/kept/step_00000020" ] && [ "$(find "$work/kept" -maxdepth 1 -name 'step_*.damaged' | wc -l)" -eq 3 ]
    verdict $? "--keep-checkpoints 1 beside damaged ones, a $kind among them: $(ls "$work/kept"); $(tail -n 3 "$work/kept.log")"
done
for folder in "$work"/kept/step_*; do rm "$folder/manifest.json"; done
train "$precision" "$work/kept" --resume
[ $? -eq 65 ]
verdict $? "no checkpoint that verifies: refused"

# stopped by a signal: saved, exit code 75
for try in {1..20}; do   # again where the signal came after the last step
    rm -rf "$work/signal" "$work/signal.log"
    (run_as=exec train "$precision" "$work/signal") & pid=$!
    eventually "$pid" grep -qs "^step    3/" "$work/signal.log"
    kill -TERM "$pid"
    wait "$pid"
    code=$?
    [ $code -eq 0 ] || break
done
[ $code -eq 75 ] && train "$precision" "$work/signal" --resume && same "$work/signal" "$plain"
verdict $? "stopped by SIGTERM and resumed"

# an output folder that is taken away is told, with the file, instead of training for nothing
for how in removed moved; do
    rm -rf "$work/gone"
    (run_as=exec train "$precision" "$work/gone" --max-steps 4000 --warmup 3 --checkpoint-every 1) & pid=$!
    eventually "$pid" grep -qs "^step    3/" "$work/gone.log"
    if [ $how = removed ]; then
        until rm -r "$work/gone" 2>/dev/null; do [ -d "$work/gone" ] || break; done   # again where a file came while it looked
    else
        mv -T "$work/gone" "$work/elsewhere"
    fi
    wait "$pid"
    [ $? -eq 74 ] && grep -q "gone/metrics.jsonl: it was removed or moved" "$work/gone.log"
    verdict $? "the output folder is taken away ($how): $(tail -n 3 "$work/gone.log")"
    [ ! -e "$work/gone" ]
    verdict $? "the output folder was made anew ($how): $(ls "$work/gone" 2>/dev/null)"
    mv "$work/gone.log" "$work/$how.log"
done
grep -q '"step":3,' "$work/elsewhere/metrics.jsonl"
verdict $? "what was moved is whole"
written=$(sed -nE 's/^ *checkpoint .*(step_[0-9]+)$/\1/p' "$work/moved.log" | tail -n 1)
[ -n "$written" ] && [ -f "$work/elsewhere/$written/manifest.json" ]
verdict $? "the newest checkpoint that the run told of, $written, is where the folder was moved to"
last=$(grep -o '"step":[0-9]*' "$work/elsewhere/metrics.jsonl" | tail -n 1)
train "$precision" "$work/elsewhere" --resume --max-steps $((${last#*:} + 2)) --warmup 3
verdict $? "and the run goes on there: $(tail -n 3 "$work/elsewhere.log")"

# killed at six moments, and continued until it is done
start() { (run_as=exec train "$precision" "$work/killed" --resume --checkpoint-every 1 --keep-checkpoints 2) & pid=$!; }
for delay in 0.4 0.7 0.5 0.9 0.6 0.8; do
    start
    sleep "$delay"
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
done
start
wait "$pid"
verdict $? "a run killed six times finishes: $(tail -n 2 "$work/killed.log")"
same "$work/killed" "$plain"
verdict $? "killed six times equals uncut"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
