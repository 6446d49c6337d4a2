#!/usr/bin/env bash
# The program under data, tensor, pipeline and context parallelism: losses of one process, cut and resumed character for
# character, a trace, and what is refused.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

numbers_as_data 8000 3000
# run RANKS NAME ARGUMENTS...
run() {
    local ranks=$1 name=$2
    shift 2
    scripts/launch.sh -n "$ranks" "$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" \
        --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --total-batch 384 --max-steps 4 --val-every 2 \
        --val-max-batches 5 --sample-every 4 --lr 1e-3 --output-dir "$work/$name" "$@" >>"$work/$name.log" 2>&1
}
records() { without_times_or_memory "$work/$1/metrics.jsonl"; }
losses() { grep -oE '"(val_)?loss":[0-9.e+-]+' "$work/$1/metrics.jsonl" | cut -d: -f2; }
near() {   # NAME OTHER: losses within 5e-4, line by line
    paste <(losses "$1") <(losses "$2") |
        awk '{ d = $1 / $2 - 1; n++; if (NF != 2 || d > 5e-4 || d < -5e-4) bad = 1 } END { exit bad || n != 7 }'
}

run 1 alone
verdict $? "one process: $(tail -n 3 "$work/alone.log")"
run 2 two --zero 1
verdict $? "two ranks, ZeRO-1: $(tail -n 3 "$work/two.log")"
near two alone
verdict $? "losses of two ranks: $(losses two | xargs) against $(losses alone | xargs)"
run 3 three --zero 3 --dp 3 --trace "$work/trace.json"
verdict $? "three ranks, ZeRO-3: $(tail -n 3 "$work/three.log")"
near three alone
verdict $? "losses of three ranks: $(losses three | xargs) against $(losses alone | xargs)"
[ "$(grep -c 'ZeRO stage *| 3 ' "$work/three.log")" -eq 1 ] && grep -q 'unsharded parameters' "$work/three.log"
verdict $? "the tables of a ZeRO-3 run"
# checkpoints included, the run holds at its end what the table at its start says
held=$(sed -nE 's/^ +sum +([0-9.]+ MiB).*/\1/p' "$work/three.log")
grep -qE '^ +checkpoint ' "$work/three.log" && [ -n "$held" ] && grep -qF "at the end: the table $held," "$work/three.log"
verdict $? "at the start $held; $(grep 'memory at the end' "$work/three.log")"

# the trace: every rank with both streams, and traffic between them
for part in '"traceEvents"' '"rank 0"' '"rank 2"' '"communication ' '"computation ' 'all-gather of' 'reduce-scatter of' '"ph":"X"'; do
    grep -q "$part" "$work/trace.json"
    verdict $? "trace without $part"
done

run 3 three-cut --zero 3 --dp 3 --stop-after 2
verdict $? "stopped after 2 steps: $(tail -n 3 "$work/three-cut.log")"
run 3 three-cut --zero 3 --dp 3 --resume
verdict $? "resumed: $(tail -n 3 "$work/three-cut.log")"
cmp -s <(records three) <(records three-cut)
verdict $? "a resumed run of three ranks differs from the uncut one"

# tensor parallelism: one process's losses, and a checkpoint that goes on without it
run 4 tensor --tp 2 --zero 1 --check-collectives
verdict $? "four ranks, two of tp: $(tail -n 3 "$work/tensor.log")"
near tensor alone
verdict $? "losses of tp ranks: $(losses tensor | xargs) against $(losses alone | xargs)"
run 2 tensor-cut --tp 2 --sequence-parallel 0 --stop-after 2
verdict $? "two tp ranks, stopped after 2 steps: $(tail -n 3 "$work/tensor-cut.log")"
run 2 tensor-cut --tp 1 --zero 3 --resume
verdict $? "resumed without tp: $(tail -n 3 "$work/tensor-cut.log")"
near tensor-cut alone
verdict $? "losses of a run that left tp: $(losses tensor-cut | xargs) against $(losses alone | xargs)"
# a pipeline: checkpoints, samples and exports go through it, and so does an interrupted run
run 2 pipe --pp 2 --check-collectives --export-llmc "$work/pipe.bin"
verdict $? "two pipeline stages: $(tail -n 3 "$work/pipe.log")"
near pipe alone
verdict $? "losses of two pipeline stages: $(losses pipe | xargs) against $(losses alone | xargs)"
run 2 pipe-cut --pp 2 --stop-after 2
run 2 pipe-cut --pp 2 --resume --export-llmc "$work/pipe-cut.bin"
cmp -s <(records pipe) <(records pipe-cut) && cmp -s "$work/pipe.bin" "$work/pipe-cut.bin"
verdict $? "a resumed run of two pipeline stages differs from the uncut one: $(tail -n 3 "$work/pipe-cut.log")"
run 4 pipe-zero --pp 2 --pp-schedule zb --pp-warmup 1 --zero 3 --check-collectives --trace "$work/pipe-zero.json"
verdict $? "two pipeline stages x two ranks, ZeRO-3: $(tail -n 3 "$work/pipe-zero.log")"
near pipe-zero alone
verdict $? "losses of two pipeline stages x two ranks: $(losses pipe-zero | xargs) against $(losses alone | xargs)"

# shared sequences: a ring, cut and resumed, and rings of groups
run 2 ring --cp 2 --check-collectives
verdict $? "two ranks of a ring: $(tail -n 3 "$work/ring.log")"
near ring alone
verdict $? "losses of a ring: $(losses ring | xargs) against $(losses alone | xargs)"
run 2 ring-cut --cp 2 --stop-after 2
run 2 ring-cut --cp 2 --resume
cmp -s <(records ring) <(records ring-cut)
verdict $? "a resumed run of a ring differs from the uncut one: $(tail -n 3 "$work/ring-cut.log")"
run 4 hybrid --cp 4 --cp-mode hybrid --cp-ulysses 2 --zero 2 --check-collectives --trace "$work/hybrid.json"
verdict $? "rings of groups: $(tail -n 3 "$work/hybrid.log")"
grep -q -- "--cp-mode *| hybrid" "$work/hybrid.log" && grep -q -- "--cp-ulysses *| 2 " "$work/hybrid.log"
verdict $? "the settings of rings of groups: $(grep -e --cp "$work/hybrid.log")"
near hybrid alone
verdict $? "losses of rings of groups: $(losses hybrid | xargs) against $(losses alone | xargs)"

# all axes together; a checkpoint goes on under other axes
run 4 tensor-pipe --tp 2 --pp 2 --check-collectives
verdict $? "two tp ranks x two pipeline stages: $(tail -n 3 "$work/tensor-pipe.log")"
near tensor-pipe alone
verdict $? "losses of tp ranks in a pipeline: $(losses tensor-pipe | xargs) against $(losses alone | xargs)"
run 8 all --tp 2 --pp 2 --cp 2 --check-collectives --stop-after 2 --trace "$work/all.json"
verdict $? "tp x pp x cp, stopped after 2 steps: $(tail -n 3 "$work/all.log")"
run 4 all --tp 1 --pp 2 --cp 2 --cp-mode ulysses --zero 3 --pp-schedule gpipe --resume --check-collectives
verdict $? "resumed as pp x cp: $(tail -n 3 "$work/all.log")"
near all alone
verdict $? "losses of a run that changed its layout: $(losses all | xargs) against $(losses alone | xargs)"
run 4 delayed --tp 2 --pp 2 --pp-schedule zb --check-collectives
verdict $? "two tp ranks x two pipeline stages, zb: $(tail -n 3 "$work/delayed.log")"
near delayed alone
verdict $? "losses of tp ranks in a zb pipeline: $(losses delayed | xargs) against $(losses alone | xargs)"
run 4 ring-of-shards --tp 2 --cp 2 --zero 2 --check-collectives
verdict $? "two tp ranks in a ring of two: $(tail -n 3 "$work/ring-of-shards.log")"
near ring-of-shards alone
verdict $? "losses of tp ranks in a ring: $(losses ring-of-shards | xargs) against $(losses alone | xargs)"

# experts: dealt out to ranks of dp, then to ranks of tp
experts=(--experts 4 --shared-experts 1 --aux-loss 0.01)
run 1 experts "${experts[@]}"
run 2 dealt "${experts[@]}" --ep 2 --zero 1 --check-collectives --stop-after 2
verdict $? "experts dealt out to two ranks: $(tail -n 3 "$work/dealt.log")"
run 2 dealt "${experts[@]}" --ep 2 --tp 2 --zero 0 --recompute block --resume --check-collectives
verdict $? "experts dealt out to two tp ranks: $(tail -n 3 "$work/dealt.log")"
near dealt experts
verdict $? "losses of experts dealt out: $(losses dealt | xargs) against $(losses experts | xargs)"
run 1 scaled "${experts[@]}" --router-scale 2.5 && [ "$(losses scaled | head -n 1)" != "$(losses experts | head -n 1)" ]
verdict $? "losses of experts scaled by 2.5: $(losses scaled | xargs) against $(losses experts | xargs)"
for scale in 1 2; do   # a run goes on with the factor that it has
    ! run 1 scaled "${experts[@]}" --router-scale $scale --resume --max-steps 5 &&
        tail -n 3 "$work/scaled.log" | grep -q "the run was of a model with .* router-scale 2.5"
    verdict $? "--router-scale $scale where the run has 2.5: $(tail -n 3 "$work/scaled.log")"
done

# the line of progress and metrics.jsonl tell the same load and losses, of those that are on
loads() {   # NAME
    sed -nE 's/.* \| (experts [^|]*)$/\1/p' "$work/$1.log"
}
told() {   # NAME: the line's words, from metrics.jsonl
    local key='"([a-z_]+)":([0-9.e+-]+)'
    grep '"expert_fullest"' "$work/$1/metrics.jsonl" | while read -r line; do
        declare -A value=()
        while [[ $line =~ $key ]]; do
            value[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
            line=${line#*"${BASH_REMATCH[0]}"}
        done
        printf 'experts %.2f-%.2f, entropy %.3f' "${value[expert_emptiest]}" "${value[expert_fullest]}" "${value[expert_entropy]}"
        [ -z "${value[expert_dropped]-}" ] || printf ', %.2f%% dropped' "$(awk -v share="${value[expert_dropped]}" 'BEGIN { print 100 * share }')"
        [ "${value[aux_loss]}" = 0 ] || printf ', balance loss %.4g' "${value[aux_loss]}"
        [ "${value[router_z_loss]}" = 0 ] || printf ', router z-loss %.4g' "${value[router_z_loss]}"
        echo
    done
}
run 1 quiet --experts 4
run 1 loud --experts 4 --aux-loss 0.01 --router-z-loss 0.001
run 1 capped --experts 4 --capacity-factor 0.75
run 2 capped-dealt --experts 4 --capacity-factor 0.75 --ep 2 --check-collectives
for name in experts dealt quiet loud capped capped-dealt; do
    [ "$(loads "$name" | wc -l)" -eq 4 ] && cmp -s <(loads "$name") <(told "$name")
    verdict $? "$name: lines of progress $(loads "$name" | xargs -d '\n'), metrics $(told "$name" | xargs -d '\n')"
done
grep -q 'balance loss .* router z-loss' <(loads loud) && ! grep -q loss <(loads quiet) && ! grep -q z-loss <(loads experts)
verdict $? "losses of routers in lines of progress: $(loads loud | tail -n 1); $(loads quiet | tail -n 1)"
grep -qE ' [2-9][0-9]\.[0-9]+% dropped$' <(loads capped) && grep -qE ' [2-9][0-9]\.[0-9]+% dropped$' <(loads capped-dealt) &&
    ! grep -q dropped "$work/quiet.log" "$work/quiet/metrics.jsonl"
verdict $? "the share dropped with a capacity: $(loads capped | tail -n 1); on two ranks: $(loads capped-dealt | tail -n 1)"

# choices in turn: an even load on every rank, without a folder, and no other run is kept under them
force() {   # RANKS ARGUMENTS...
    scripts/launch.sh -n "$1" "$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 \
        --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --max-steps 3 --val-every 0 "${@:2}" >"$work/forced.log" 2>&1
}
for layout in "1 --experts 8" "2 --experts 8 --ep 2 --router sigmoid --recompute block"; do
    # shellcheck disable=SC2086   # words
    force $layout --force-balance 1
    verdict $? "--force-balance 1 on $layout: $(tail -n 3 "$work/forced.log")"
    [ "$(grep -c 'experts 1.00-1.00, entropy 1.000' "$work/forced.log")" -eq 3 ] &&
        grep -q -- '--force-balance  *| 1 ' "$work/forced.log"
    verdict $? "an even load on $layout: $(grep step "$work/forced.log")"
done
force 1 --experts 8 && ! grep -qE 'experts 1.00-1.00|choice of experts' "$work/forced.log"
verdict $? "the router's own load: $(grep step "$work/forced.log")"
for kept in "--output-dir $work/experts --resume" "--output-dir $work/forced"; do
    # shellcheck disable=SC2086   # words
    force 1 --experts 8 --force-balance 1 $kept
    [ $? -eq 64 ] && grep -qF -- "--force-balance 1 together with ${kept%% *}" "$work/forced.log" && [ ! -e "$work/forced" ]
    verdict $? "--force-balance 1 $kept: $(tail -n 3 "$work/forced.log")"
done

# a model is measured under any layout, with the memory of forward alone
measure() {   # RANKS ARGUMENTS...
    scripts/launch.sh -n "$1" "$train_gpt" evaluate --model "$work/alone" --val-data "$work/data/*val*.bin" --micro-batch 2 \
        --val-max-batches 12 "${@:2}" >"$work/measured" 2>&1
}
measure 1 && expected=$(sed -nE 's/^val loss ([0-9.]+) .*/\1/p' "$work/measured")
for layout in "2 --zero 3" "2 --tp 2" "2 --pp 2" "2 --cp 2" "8 --tp 2 --pp 2 --cp 2" "4 --tp 2 --zero 2"; do
    # shellcheck disable=SC2086   # words
    measure $layout
    awk -v a="$expected" '/^val loss / { d = $3 / a - 1; found = d < 5e-4 && d > -5e-4 } END { exit !found }' "$work/measured"
    verdict $? "evaluate on $layout: $(tail -n 3 "$work/measured"), one process: $expected"
done

# what a viewer of traces wants, of any layout: a process for each rank, and every event with its place and time
if command -v python3 >/dev/null; then
    for trace in trace:3 pipe-zero:4 hybrid:4 all:8; do
        said=$(python3 - "$work/${trace%:*}.json" "${trace#*:}" 2>&1 <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
pieces = [e for e in events if e["ph"] != "M"]
assert {e["pid"] for e in pieces} == set(range(int(sys.argv[2]))), "processes"
names = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M" and e["name"] == "process_name"}
assert names == {(rank, f"rank {rank}") for rank in range(int(sys.argv[2]))}, names
threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
for e in pieces:
    assert e["ph"] == "X" and e["name"] and e["ts"] >= 0 and e["dur"] >= 0, e
    assert (e["pid"], e["tid"]) in threads, e
END
        )
        verdict $? "the trace ${trace%:*}.json: $said"
    done
else
    echo "SKIPPED the traces of layouts: no python3"
fi

refused() {   # NAME EXPECTED-TEXT RANKS ARGUMENTS...
    local name=$1 expected=$2 ranks=$3 status
    shift 3
    run "$ranks" "$name" "$@"
    status=$?
    [ "$status" -eq 64 ] && grep -qF -- "$expected" "$work/$name.log"
    verdict $? "$name: exit $status, $(tail -n 3 "$work/$name.log")"
}
refused wrong-dp "--dp" 2 --dp 3
refused wrong-tp "The nearest value that works is 2." 3 --tp 3
mkdir "$work/node0" "$work/node1"
scripts/launch.sh -n 2 bash -c 'cd "$1/node$RANK" && exec "$2" --train-data "$1/data/*train*.bin" --val-data "$1/data/*val*.bin" \
    --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --max-steps 1 --output-dir own' _ "$work" "$train_gpt" >"$work/nodes.log" 2>&1
[ $? -eq 64 ] && grep -q 'own/lock, in the folder .* differs: rank 0 has process .*, rank 1 has nothing' "$work/nodes.log"
verdict $? "two nodes with an output folder each: $(tail -n 3 "$work/nodes.log")"
refused shared-heads "a model of 2 heads, --cp 4 --cp-mode ulysses" 4 --cp 4 --cp-mode ulysses
refused shards-of-heads "expected heads that 2 x 2 ranks can share" 4 --tp 2 --cp 2 --cp-mode ulysses
refused few-layers "Every piece needs a layer: at most --pp 2 works" 3 --pp 3
refused ragged "--total-batch 256 and 384 are nearest" 2 --pp 2 --pp-schedule interleaved --pp-chunks 2 --total-batch 320 --layers 4
refused odd-batch "--total-batch 320: expected a multiple of --micro-batch * --seq-len * data-parallel ranks" 2 --total-batch 320

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
