#!/usr/bin/env bash
# `train_gpt plan` from outside: what it says as text, JSON and picture, that those agree, each of its warnings, what it
# refuses; a machine that is measured, planned for and compared with a run; the search; a scaling law fitted to runs.
source "$(dirname "$0")/common.sh"
train_gpt=$(realpath -m "${TRAIN_GPT:-build/$device-fp32$variant/train_gpt}")
loss_curve=$(realpath -m "${LOSS_CURVE:-build/$device$variant/loss_curve}")
needs "$train_gpt" "$tokenize" "$loss_curve"

base=("$train_gpt" plan --verbose 1 --heads 4 --seq-len 128)
model=(--layers 4 --channels 256 --vocab-size 500)
plan=("${base[@]}" "${model[@]}" --gpu H100 --micro-batch 1)
said() { sed -nE "s/$1/\\1/p" "$work/out" | head -n 1; }   # PATTERN with one group
near() {   # NAME A B: to the four digits that text has
    awk -v a="${2:-none}" -v b="${3:-none}" 'BEGIN { exit !(a + 0 != 0 && (a - b) / b < 2e-3 && (b - a) / b < 2e-3) }'
    verdict $? "$1: ${2:-nothing} and ${3:-nothing}"
}

# ---- text
layout=(--dp 2 --pp 2 --zero 1 --total-batch 2048 --recompute block)
expect 0 "parameters: 3323392 with padding, 3320320 without" "${plan[@]}" "${layout[@]}" --tokens 20x --price 2.5
cp "$work/out" "$work/text"
for words in '^training: 6.647e\+07 tokens \(20.0 per parameter\)' '^layout: 4 devices \(H100\), --tp 1 --pp 2 --dp 2 --zero 1 --recompute block, ' \
    '^memory of pipeline stage 0: ' '^memory of pipeline stage 1: ' '^  parameters ' '^  the fewest devices that hold it.*: 1$' '^  it fits$' \
    '^step: .* ms compute; bubble ' '^  dp  *2 ranks' '^  pp  *2 ranks' '^speed: .* MFU ' '^time: .* days, .* GPU-hours, .* at 2.5 each$' \
    '^failures: one in ' '^nearest limits:$' '^ +[0-9]+% of what is allowed: .*; relieved by '; do
    grep -qE "$words" "$work/text"
    verdict $? "the text has no $words: $(cat "$work/text")"
done
[ "$(grep -c 'of what is allowed' "$work/text")" -eq 3 ]
verdict $? "three limits: $(grep 'of what is allowed' "$work/text")"
sed -nE 's/^ +([0-9]+)% of what.*/\1/p' "$work/text" | sort -rnc
verdict $? "the nearest limit stands first"

# ---- JSON: it parses, and has the figures of the text
if command -v python3 >/dev/null; then
    "${plan[@]}" "${layout[@]}" --tokens 20x --price 2.5 --json 1 >"$work/json" 2>"$work/errors"
    check "the JSON parses, and nothing else is said" test ! -s "$work/errors" -a -s "$work/json"
    python3 - "$work/json" >"$work/figures" <<'END'
import json, sys
plan = json.load(open(sys.argv[1]))
for name in ("parameters", "exported_parameters", "tokens", "step_seconds", "tokens_per_second", "mfu", "days", "gpu_hours", "cost", "energy_kwh"):
    print(name, repr(plan[name]))
print("first_stage_bytes", plan["memory"][0]["bytes"])
print("fewest", plan["fewest_devices"])
print("lines", sum(plan["memory"][0]["lines"].values()) >= plan["memory"][0]["bytes"])
print("limits", len(plan["limits"]), all(set(limit) == {"what", "share", "relief"} for limit in plan["limits"]))
print("groups", *sorted(group["name"] for group in plan["groups"] if group["bytes"] > 0))
END
    check "the JSON has its members" test "$(wc -l <"$work/figures")" -eq 15
    figure() { sed -n "s/^$1 //p" "$work/figures"; }
    cp "$work/text" "$work/out"
    near "parameters" "$(said 'parameters: ([0-9]+) with.*')" "$(figure parameters)"
    near "parameters without padding" "$(said '.*padding, ([0-9]+) without')" "$(figure exported_parameters)"
    near "tokens" "$(said 'training: ([^ ]+) tokens.*')" "$(figure tokens)"
    near "step" "$(said 'step: ([^ ]+) ms.*')" "$(awk -v s="$(figure step_seconds)" 'BEGIN { print 1e3 * s }')"
    near "speed" "$(said 'speed: ([^ ]+) tokens.*')" "$(figure tokens_per_second)"
    near "days" "$(said 'time: ([^ ]+) days.*')" "$(figure days)"
    near "GPU-hours" "$(said '.* days, ([^ ]+) GPU-hours.*')" "$(figure gpu_hours)"
    near "money" "$(said '.* GPU-hours, ([^ ]+) at .*')" "$(figure cost)"
    near "energy is hours times 700 W" "$(figure energy_kwh)" "$(awk -v h="$(figure gpu_hours)" 'BEGIN { print 0.7 * h }')"
    near "money is hours times price" "$(figure cost)" "$(awk -v h="$(figure gpu_hours)" 'BEGIN { print 2.5 * h }')"
    [ "$(figure fewest)" = 1 ] && [ "$(figure lines)" = True ] && [ "$(figure limits)" = "3 True" ] && [ "$(figure groups)" = "all dp pp" ]
    verdict $? "members of the JSON: $(cat "$work/figures")"

    # ---- the picture
    expect 0 "speed: " "${plan[@]}" "${layout[@]}" --svg "$work/plan.svg"
    check "the picture is well-formed, with a bar for each stage" python3 -c '
import sys, xml.etree.ElementTree as tree
texts = [text.text for text in tree.parse(sys.argv[1]).iter("{http://www.w3.org/2000/svg}text")]
assert "stage 0" in texts and "stage 1" in texts, texts' "$work/plan.svg"
else
    echo "SKIPPED JSON and picture of a plan: no python3 on this machine"
fi

# ---- the short form: three lines first, then only what counts
short=("$train_gpt" plan --heads 4 --seq-len 128 "${model[@]}" --micro-batch 1 "${layout[@]}")
expect 0 "speeds of RTX4090 are not measured but estimated" "${short[@]}" --gpu rtx4090 --tokens 20x
expect 0 " of 14.4 GiB a device" "${short[@]}" --gpu rtx4090 --gpu-memory 16GB --tokens 20x
expect 0 " of 14.4 GiB a device" "${short[@]}" --gpu rtx4090 --gpu-memory 16 --tokens 20x
expect 64 "--gpu-memory" "${short[@]}" --gpu rtx4090 --gpu-memory 16MB --tokens 20x
expect 64 "--gpu-memory" "${short[@]}" --gpu rtx4090 --gpu-memory 16GBx --tokens 20x
expect 0 "Fits: " "${short[@]}" --tokens 20x --price 2.5
first=0
for words in '^Fits: [0-9.]+ of 71\.6 GiB a device\. [0-9.]+ to [0-9.]+ minutes on 4 H100, [0-9.]+ to [0-9.]+ GPU-hours, [0-9.]+ to [0-9.]+ at 2\.5 each\.$' \
    '^Compute-optimal for as many FLOPs: [0-9.]+M parameters on [0-9.]+M tokens\. Planned: 3\.32M on 66\.5M\.$' \
    '^Range: 1 to 1\.91 times the planned step, median 1\.64: published steps of dense models on H100 and newer GPUs\. --efficiency narrows it\.$' \
    '^$' '^layout: 4 devices ' '^memory of the fullest rank, pipeline stage [01]: '; do
    first=$((first + 1))
    sed -n "${first}p" "$work/out" | grep -qE "$words"
    verdict $? "line $first is not $words: $(head -n 6 "$work/out")"
done
for words in '^  [a-z]+ +[0-9.]+ MiB +[0-9]+% #' '^step: [0-9.]+ ms in the best case$' '^  compute +[0-9.]+ ms +[0-9]+% #+$' "^  pipeline's bubble +[0-9.]+ ms +[0-9]+% #+\$" \
    '^    of group (dp|pp) +[0-9.]+ ms' '^speed: .* MFU .*peak of 66.9 TFLOP' '^nearest limits:$'; do
    grep -qE "$words" "$work/out"
    verdict $? "the short form has no $words: $(cat "$work/out")"
done
! grep -E ' 0\.0+ (ms|GiB)|of group all|^parameters:|^failures:|^  it fits' "$work/out"
verdict $? "the short form has what only the long one should have: $(cat "$work/out")"
awk '/^step:/ { all = $2 } /^  (compute|pipeline|exposed)/ { for (i = 2; i < NF; i++) if ($(i + 1) == "ms") sum += $i }
    END { exit !(all > 0 && sum > 0.99 * all && sum < 1.01 * all) }' "$work/out"
verdict $? "the parts of a step make the step: $(cat "$work/out")"
hours=$(said '.*, ([0-9.]+) to [0-9.]+ GPU-hours.*') most=$(said '.*, [0-9.]+ to ([0-9.]+) GPU-hours.*')
awk -v a="$hours" -v b="$most" 'BEGIN { exit !(a > 0 && b / a > 1.89 && b / a < 1.93) }'
verdict $? "GPU-hours from the best case to 1.91 times as many: $hours to $most"
kwh=$(said 'energy: ([0-9.]+) kWh at the late end, with every GPU at its power limit of 700 W .*')
awk -v e="${kwh:-0}" -v h="$most" 'BEGIN { exit !(e > 0 && e / (0.7 * h) > 0.98 && e / (0.7 * h) < 1.02) }'
verdict $? "energy is the most GPU-hours times 0.7 kW: $kwh of $most: $(grep ^energy "$work/out")"
expect 0 "GPU at its power limit of 450 W" "${short[@]}" --gpu rtx4090 --verbose 1
# fp32: weights twice and both moments
expect 0 "storage: checkpoints of 53.1 MB each; tokenized data 133 MB for one epoch, 2 bytes a token" "${short[@]}" --tokens 20x
expect 0 "storage: checkpoints of 53.1 MB each, at most 4 kept: 213 MB; " "${short[@]}" --tokens 20x -o "$work/run" --checkpoint-every 1000 --keep-checkpoints 3 --verbose 1
expect 0 '"data_bytes": 4000000.0' "${short[@]}" --vocab-size 65537 --tokens 1M --json 1
expect 0 "warning: communication shows" "${short[@]}" --link-intra 0.1,10
expect 0 "Times are 2 times the best case: --efficiency 0.5." "${short[@]}" --tokens 20x --efficiency 0.5
half=$(said '.*, ([0-9.]+) GPU-hours.*')
awk -v a="$hours" -v b="$half" 'BEGIN { exit !(a > 0 && b / a > 1.98 && b / a < 2.02) }' && ! head -n 1 "$work/out" | grep -q ' to '
verdict $? "half the efficiency takes twice the hours, one figure: $(head -n 1 "$work/out")"
expect 0 '"most": 1.25' "${short[@]}" --efficiency 0.8 --json 1
expect 0 "Range: 1 to 1.75 times the planned step, median 1.33: published steps of dense models on A100" "${short[@]}" --gpu A100
expect 0 "Range: 0.72 to 1.08 times the planned step, median 0.84: published steps of mixtures" "${short[@]}" --experts 4 --experts-per-token 2

# ---- tokens
expect 0 "training: 3e+11 tokens" "${plan[@]}" --tokens 300e9
expect 0 " at 2.5 each" "$train_gpt" plan --verbose 1 --gpu h100 --model qwen3:600M --tokens 300B --price '$2.5' --micro-batch 1 --seq-len 128
grep -q "^training: 3e+11 tokens" "$work/out" && grep -q "vocabulary 151936 " "$work/out" && grep -q "^layout: 1 devices (H100)" "$work/out"
verdict $? "a GPU in small letters, 300B tokens, and the published vocabulary: $(head -n 9 "$work/out")"
expect 0 "training: 2.048e+04 tokens" "${plan[@]}" --total-batch 2048 --max-steps 10
expect 0 "training: 6.647e+07 tokens (20.0 per parameter)" "${plan[@]}"

expect 0 "training: 6.647e+07 tokens (20.0 per parameter)" "${plan[@]}" --tokens 20x-active
mixture=(--experts 8 --experts-per-token 2 --shared-experts 1 --expert-width 512)   # a layer's 8 experts have 2 x 512 x 256 weights each
expect 0 "  active, with the 2 of 8 experts that a token goes to: " "${plan[@]}" "${mixture[@]}" --tokens 20x-active --json 0
active=$(said '  active.*: ([0-9]+) with padding.*') all=$(said 'parameters: ([0-9]+) with padding.*')
[ $((all - active)) -ge $((4 * 6 * 2 * 512 * 256)) ] && [ $((all - active)) -le $((4 * 6 * (2 * 512 * 256 + 512 + 256))) ]
verdict $? "a token goes to all but 6 experts of a layer: $active of $all"
near "tokens per active parameter" "$(said 'training: ([^ ]+) tokens.*')" $((20 * active))
grep -qE 'per parameter, all experts counted; 20.0 per active one\)' "$work/out"
verdict $? "per which parameter: $(grep ^training "$work/out")"
expect 0 "(20.0 per parameter, all experts counted; " "${plan[@]}" "${mixture[@]}" --tokens 20x
expect 0 "\"active_parameters\": $active.0," "${plan[@]}" "${mixture[@]}" --json 1

# ---- what is refused
refused() { expect 64 "$@"; }
for value in 0x 0 -5 abc x20 20y 20xx 20active 20x- 1e19 nan; do
    refused "--tokens $value: expected a number of tokens as in 300B, or one per parameter" "${plan[@]}" --tokens $value
done
refused "--gpu B300: not in the table, expected one of H100, H200" "${plan[@]}" --gpu B300
refused "--tokens 20x for so many tokens per parameter" "${plan[@]}" --tokens 20
refused "--price" "${plan[@]}" --price '$'
for value in 370 0,4 -1,2 '370,' ',4' 370,4,5 fast 370,fast 1e10,1 nan,1; do
    refused "--link-intra $value: expected GB/s,us, as in 370,4" "${plan[@]}" --link-intra=$value
    refused "--link-inter $value: expected GB/s,us" "${plan[@]}" --link-inter=$value
done
refused "--price" "${plan[@]}" --price -1
refused "--efficiency" "${plan[@]}" --efficiency 2.1
refused "a plan of a model in a file" "$train_gpt" plan --model "$work/model.bin"
expect 74 "$work/none" "${plan[@]}" --machine "$work/none"
echo '{"name": "half' >"$work/half"
expect 65 "$work/half" "${plan[@]}" --machine "$work/half"
echo '{"name": "one"}' >"$work/few"
expect 65 "--machine $work/few: byte " "${plan[@]}" --machine "$work/few"
expect 74 "/proc/none/plan.svg" "${plan[@]}" --svg /proc/none/plan.svg

# ---- each warning
warns() {   # PATTERN OPTIONS...
    expect 0 "warning: " "${base[@]}" --gpu H100 "${@:2}"
    grep -qE "^warning: $1" "$work/out"
    verdict $? "${*:2}: no warning $1: $(grep '^warning' "$work/out")"
}
small=("${model[@]}" --micro-batch 1) experts=(--experts 4 --experts-per-token 2)
warns "a step of 1 micro-batches keeps at most 1 of 2 pipeline stages busy" "${small[@]}" --pp 2
warns "--tp 4 reaches over nodes" "${small[@]}" --tp 4 --gpus-per-node 2
warns "a Ulysses group of 4 reaches over nodes" "${small[@]}" --cp 4 --cp-mode ulysses --gpus-per-node 2
warns "--ep 4 reaches over nodes" "${small[@]}" "${experts[@]}" --dp 4 --ep 4 --gpus-per-node 2
warns "--tp-chunks 3: " "${small[@]}" --tp 2 --tp-chunks 3
warns "the pipeline's bubble is .* of the time: --total-batch 1536, 12 micro-batches" --layers 16 --channels 256 --vocab-size 500 --micro-batch 1 --pp 4 --total-batch 512
warns "the pipeline's bubble is .* of the time: its stages are unequal" --layers 4 --channels 256 --vocab-size 50000 --micro-batch 1 --pp 4 --total-batch 4096
warns "communication shows for .* of a step, most of it in group dp" "${small[@]}" --dp 2 --link-intra 0.1,10
warns "--zero 3 gathers layers of .* less than what 8 ranks' latency costs" "${small[@]}" --dp 8 --zero 3
warns "--zero 3 gathers layers of .* \(12\.80 MB\)" "${small[@]}" --dp 8 --zero 3 --gpus-per-node 4 --link-inter 40,10
warns "4 micro-batches of 1 sequences leave more than half of the device's memory free: --micro-batch 2" "${small[@]}" --total-batch 512
expect 0 "nearest limits:" "${base[@]}" --gpu H100 --layers 8 --channels 1024 --vocab-size 500 --micro-batch 8
! grep -q "^warning:" "$work/out"
verdict $? "no warning where nothing is wrong: $(grep '^warning' "$work/out")"

# ---- experts: a token meets two of them, whatever number there are
step() { "${base[@]}" --gpu H100 --layers 2 --channels 1024 --vocab-size 500 --micro-batch 32 --expert-width 4096 --experts-per-token 2 --json 1 "$@" |
    sed -nE 's/^ *"step_seconds": ([^,]+),$/\1/p'; }
few=$(step --experts 4) many=$(step --experts 16)
awk -v few="$few" -v many="$many" 'BEGIN { exit !(few > 0 && many > few && many < 2 * few) }'
verdict $? "a step of 16 experts takes $many s, of 4 $few s: a token has two of either"
expect 0 "--ep 2 " "${plan[@]}" "${experts[@]}" --dp 4 --ep 2
grep -qE '^  ep +2 ranks on 1 node\(s\) +[0-9.]+ GB sent' "$work/out"
verdict $? "what --ep sends: $(cat "$work/out")"

# ---- the search
expect 0 "layouts divide; the best of them:" "${plan[@]}" --search 1 --processes 8 --total-batch 8192
grep -qE ' ms (replayed|formula ) +--tp .* the fastest that fits$' "$work/out" && grep -qE '% slower: (its bubble|communication that shows|more computation)$' "$work/out" &&
    grep -qE 'by the closed form' "$work/out"
verdict $? "reasons of the search: $(head -n 20 "$work/out")"
best=$(sed -nE 's/^ .* (--tp [0-9]+ --pp [0-9]+ --dp [0-9]+) .*the fastest that fits$/\1/p' "$work/out")
read -r _ tp _ pp _ dp <<<"$best"
grep -qF -- "--tp $tp --pp $pp --dp $dp " <(grep '^layout: 8 devices' "$work/out")
verdict $? "what is planned is the best, $best: $(grep '^layout' "$work/out")"
expect 0 " GiB" "$train_gpt" plan --verbose 1 --gpu H100 --model gpt3:6700M --seq-len 2048 --micro-batch 1 --search 1 --processes 2 --total-batch 65536
grep -q 'does not fit: [0-9.]* of 71.6 GiB allowed' "$work/out"
verdict $? "what does not fit: $(head -n 9 "$work/out")"
huge=(--layers 200 --heads 160 --channels 20480 --vocab-size 50257 --seq-len 1024)   # no node holds it, nor do the addresses of a recorded device
expect 0 "none fits; those that take the least memory:" "$train_gpt" plan --verbose 1 --gpu H100 "${huge[@]}" --micro-batch 1 --search 1 --processes 8 --total-batch 8192
awk '/does not fit: [0-9.]+ of / { sub(/.*does not fit: /, ""); if ($1 + 0 < last + 0) bad = 1; last = $1 } END { exit bad }' "$work/out"
verdict $? "the least memory stands first: $(head -n 20 "$work/out")"
grep -qE '^Does not fit: [0-9.,]+ of 71.6 GiB a device; the fewest devices that hold it, with a layout of their own: [0-9]+\. ' "$work/out"
verdict $? "the first line says that it does not fit: $(head -n 1 "$work/out")"
for words in 'the fewest devices that hold it, with a layout of their own: [0-9]+$' '^  it does not fit: ' '^speed: '; do
    grep -qE "$words" "$work/out"
    verdict $? "what fits nowhere is planned, and how many devices hold it is said: $words"
done
expect 0 "by closed forms: a rank has too much memory to be recorded" "$train_gpt" plan --gpu H100 "${huge[@]}" --micro-batch 1 --processes 1 --total-batch 1024
keeps() {   # PATTERN OPTIONS...: what is given stays in every row
    expect 0 "layouts divide; the best of them:" "$train_gpt" plan --verbose 1 "${model[@]}" --heads 8 --gpu H100 --micro-batch 1 --seq-len 2048 \
        --search 1 --processes 8 --total-batch 16384 "${@:2}"
    ! grep -E '^ .* ms (replayed|formula ) ' "$work/out" | grep -vE -- "$1"
    verdict $? "what is given stays, ${*:2}: $(head -n 20 "$work/out")"
}
keeps '--cp 4 --cp-mode hybrid --cp-ulysses 2 ' --cp 4 --cp-mode hybrid --cp-ulysses 2
keeps '--cp 4 --cp-mode ulysses ' --cp 4 --cp-mode ulysses --cp-ulysses 4
keeps '--tp 2 .* --zero 3 ' --tp 2 --zero 3
refused "no layout of 7 ranks divides this model and batch" "${plan[@]}" --search 1 --processes 7 --total-batch 128

"${short[@]:0:12}" --search 1 --processes 8 --total-batch 8192 >"$work/out" 2>&1
head -n 1 "$work/out" | grep -q "^Fits: .* on 8 H100, " && sed -n 5p "$work/out" | grep -q "layouts divide; the best of them:$" && [ "$(grep -cE ' ms (replayed|formula ) ' "$work/out")" -eq 5 ]
verdict $? "three lines, then five layouts: $(head -n 12 "$work/out")"
refused "--search 1 without --processes" "${plan[@]}" --search 1 --total-batch 8192
refused "--processes 16 --tp 4 --dp 8: the layout has 32 ranks" "${plan[@]}" --processes 16 --tp 4 --dp 8
expect 0 "would let data parallelism use all 3 GPUs." "${plan[@]}" --search 1 --processes 3 --pp 3 --total-batch 2048

# ---- by a deadline: the cheapest number of GPUs, whose late end is in time; what --search says of as many
by=("$train_gpt" plan --heads 4 --seq-len 128 "${model[@]}" --gpu H100 --total-batch 131072 --tokens 300B)
expect 0 "Deadline 8h: met. At the late end of the range the run takes " "${by[@]}" --deadline 8h --price 2.5
head -n 1 "$work/out" | grep -qE ' takes 7\.[0-9]+ hours on 16 H100\.$' && grep -qE '^ +8 H100 +1[0-9.]+ hours +[0-9]+ GPU-hours +[0-9]+$' "$work/out" &&
    grep -qE '^ +16 H100 +7\.[0-9]+ hours .* planned below$' "$work/out" && grep -q '^layout: 16 devices ' "$work/out"
verdict $? "16 GPUs are in time, 8 are not: $(head -n 12 "$work/out")"
fits=$(grep '^Fits: ' "$work/out")
expect 0 "${fits:-no line}" "${by[@]}" --search 1 --processes 16 --price 2.5
expect 0 "takes 15.2 hours on 8 H100." "${by[@]}" --deadline 3d --dp 8 --tp 1 --pp 1
expect 0 ' on 1 H100.' "${by[@]}" --deadline 52w
expect 0 '"meets_deadline": true,' "${by[@]}" --deadline 36h --json 1
! grep -q '"tried": \[\]' "$work/out" && grep -q '"step_seconds"' "$work/out"
verdict $? "the numbers that were searched are in the JSON: $(tail -n 40 "$work/out")"
few=("${by[@]}" --total-batch 512)   # a step has four sequences
expect 0 "Deadline 1h: not met. The earliest end found, at the late end of the range, is after " "${few[@]}" --deadline 1h
end=$(said 'Deadline 1h: .* on ([0-9]+) H100\.$')
awk -v chosen="${end:-0}" '$2 == "H100" && $4 ~ /days|hours/ { time = $3 * ($4 == "days" ? 24 : 1); if ($1 == chosen) own = time; if (!least || time < least) least = time; n++ }
    END { exit !(n > 1 && own > 0 && own <= least) }' "$work/out"
verdict $? "no number of GPUs ends earlier than $end: $(head -n 9 "$work/out")"
for value in soon 14 14y -2d 0d d 1e9w; do
    refused "--deadline $value: expected a time in hours, days or weeks, as 36h, 14d or 2w" "${by[@]}" --deadline=$value
done
refused "--deadline with --processes" "${by[@]}" --deadline 2d --processes 8
refused "a search of layouts without --total-batch" "${plan[@]}" --deadline 2d
expect 0 "Deadline 40d: met. At the late end of the range the run takes " "${by[@]}" --total-batch 128 --deadline 40d   # one sequence
expect 0 'on 72 GB200' "${by[@]}" --gpu GB200 --total-batch 147456 --deadline 3h
refused "--deadline: of the numbers of GPUs that were searched, powers of two from 1 to 16384, none has a layout" "${by[@]}" --deadline 2d --tp 3

# ---- a machine that is measured, a plan for it, and the run
numbers_as_data 4000 2000
run=(--layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --recompute none)
data=(--train-data "$work/data/*train*.bin" --val-every 0 --sample-every 0)
expect 0 "the run can begin" "$train_gpt" check "${run[@]}" "${data[@]}" --write-machine "$work/machine"
expect 0 "vocabulary: 257, the data's; llama:15M was published with 32000" "$train_gpt" check --model llama:15M --seq-len 32 --micro-batch 1 "${data[@]}"
in_machine() { tr -d '\n' <"$1" | sed -nE "s/.*\"$2\": \{? *(\"bytes_per_second\": )?([-0-9.e+]+).*/\2/p"; }
[ "$(in_machine "$work/machine" multiprocessors)" = 0 ]
verdict $? "no collective takes anything from one rank: $(in_machine "$work/machine" multiprocessors)"
expect 0 "the run can begin" scripts/launch.sh -n 2 "$train_gpt" check "${run[@]}" --total-batch 128 "${data[@]}" --write-machine "$work/machine2"
reduced=$(sed -nE 's/^ +group dp of rank 0 +[0-9.]+ +([0-9.]+)$/\1/p' "$work/out")
awk -v link="$(in_machine "$work/machine2" intra)" -v all_reduce="$reduced" 'BEGIN { exit !(link > 0 && link <= 1e9 * (all_reduce + 0.001)) }'
verdict $? "no link is faster than an all-reduce: $(in_machine "$work/machine2" intra), $reduced GB/s"
expect 0 "to 1.18 times the planned step, median 1.11: 3 runs of this program" \
    "$train_gpt" plan "${run[@]}" --vocab-size 257 --dp 2 --total-batch 128 --machine "$work/machine2"
grep -q "^layout: 2 devices" "$work/out" && ! grep -q "^energy" "$work/out"
verdict $? "a plan for the measured machine: $(cat "$work/out")"
expect 0 "2 rank(s), matmuls of 64 rows, attention of 2 x 32 tokens, 2 heads of 16" "$train_gpt" plan --verbose 1 "${run[@]}" --vocab-size 257 --dp 2 --total-batch 128 --machine "$work/machine2"
expect 0 "5/5 | loss" "$train_gpt" "${run[@]}" "${data[@]}" --max-steps 5 -o "$work/run"
expect 0 "compared with the medians of 4 steps:" "$train_gpt" plan "${run[@]}" --vocab-size 257 --machine "$work/machine" --compare "$work/run"
for what in "step .* ms: the plan is off by" "speed .* tokens/s: the plan is off by" "memory .* bytes of the first rank: the plan is off by [+-][0-9.]+%"; do
    grep -qE "^  $what" "$work/out"
    verdict $? "--compare says $what: $(tail -n 5 "$work/out")"
done
expect 74 "$work/data/metrics.jsonl" "$train_gpt" plan "${run[@]}" --machine "$work/machine" --compare "$work/data"
mkdir "$work/short" && head -n 1 "$work/run/metrics.jsonl" >"$work/short/metrics.jsonl"
expect 65 "steps, expected two or more" "$train_gpt" plan "${run[@]}" --machine "$work/machine" --compare "$work/short"

# ---- a scaling law is found again from curves that follow it
law() { awk -v n="$1" -v d="$2" 'BEGIN { printf "%.9f", 1.8 + 480 / n ^ 0.35 + 2000 / d ^ 0.37 }'; }
ends=()
for n in 1e7 3e7 1e8 3e8; do
    for ratio in 5 20 80; do
        tokens=$(awk -v n=$n -v r=$ratio 'BEGIN { printf "%d", n * r }') curve="$work/curve-$n-$ratio"
        mkdir "$curve"
        for step in 1 2; do
            echo "{\"step\":$step,\"loss\":5,\"grad_norm\":1,\"lr\":1e-3,\"tokens_per_s\":$((tokens / 2)),\"step_ms\":1000,\"memory_bytes\":1}"
        done >"$curve/metrics.jsonl"
        echo "{\"step\":2,\"val_loss\":$(law $n "$tokens")}" >>"$curve/metrics.jsonl"
        ends+=("$n:$curve")
    done
done
expect 0 "best for 1e+21 FLOPs" "$loss_curve" --fit "${ends[@]}"
read -r e a b < <(sed -nE 's/^L = ([0-9.e+]+) \+ .* N\^([0-9.]+) \+ .* D\^([0-9.]+)$/\1 \2 \3/p' "$work/out")
awk -v e="${e:-0}" -v a="${a:-0}" -v b="${b:-0}" 'BEGIN { exit !(e > 1.75 && e < 1.85 && a > 0.34 && a < 0.36 && b > 0.36 && b < 0.38) }'
verdict $? "the law of the curves, 1.8, 0.35 and 0.37: $(head -n 1 "$work/out")"
refused "from 3 runs" "$loss_curve" --fit "${ends[@]:0:3}"
refused "expected PARAMETERS:RUN" "$loss_curve" --fit "$work/run"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
