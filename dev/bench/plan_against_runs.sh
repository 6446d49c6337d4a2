#!/usr/bin/env bash
# `train_gpt plan` against training runs on this machine's CPU, in one go:
#
#   dev/bench/plan_against_runs.sh [--ranks 1,2,4] [--rounds N] [--precision bf16|fp32] [--model NAME] [--seq-len T]
#
# For each number of ranks: measures the machine with as many, plans a run, trains it N times (5), a new process each
# time, and prints a row of a table in Markdown: the planned step, the median of the runs' medians with the least and the
# most, by how much the plan is off, and whether that is within 15%; memory of the first rank likewise. A run's first step
# does not count. Ranks are data-parallel with ZeRO-1. A run ends with a checkpoint, which is thrown away. A few minutes;
# nothing else should run meanwhile.
#
# Exits with 1 if a plan of 1 or 2 ranks is off by more than 15%. Needs build/cpu-<precision>/train_gpt and
# build/cpu/tokenize (or BUILD=folder of them).
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${BUILD:-build}") ranks=1,2,4 rounds=5 precision=bf16 model=gpt2:124M seq_len=256 steps=8
while [ $# -gt 0 ]; do
    case "$1" in
        --ranks) ranks=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --precision) precision=$2; shift 2 ;;
        --model) model=$2; shift 2 ;;
        --seq-len) seq_len=$2; shift 2 ;;
        -h|--help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
        *) echo "unknown option $1; see --help" >&2; exit 64 ;;
    esac
done
train_gpt=$build/cpu-$precision/train_gpt
for program in "$train_gpt" "$build/cpu/tokenize"; do
    [ -x "$program" ] || { echo "no $program; see --help" >&2; exit 69; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find /usr/include -name '*.h' | LC_ALL=C sort >"$work/files"
quietly() {   # what fails is shown
    "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 70; }
}
quietly "$build/cpu/tokenize" --quiet --tokenizer bytes --files-from "$work/files" --max-bytes 2MB --output "$work/tokens"
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[1], v[NR] }'; }

echo "Plans a step of $model, $seq_len tokens a rank, in $precision, trains it $rounds times on ranks of this machine, and compares:"
echo
echo "| ranks | planned, ms | measured, ms (least, most) | the plan is off by | within 15% | memory is off by |"
echo "|---|---|---|---|---|---|"
missed=0
for n in ${ranks//,/ }; do
    shape=(--model "$model" --vocab-size 50257 --seq-len "$seq_len" --micro-batch 1 --recompute none
        --total-batch $((n * seq_len)) --zero $((n > 1)))
    data=(--train-data "$work/tokens/train*.bin" --val-every 0)
    quietly scripts/launch.sh -n "$n" "$train_gpt" check "${shape[@]}" "${data[@]}" --write-machine "$work/machine$n"
    for ((round = 1; round <= rounds; round++)); do
        quietly scripts/launch.sh -n "$n" "$train_gpt" "${shape[@]}" "${data[@]}" --sample-every 0 \
            --checkpoint-every 0 --max-steps $steps --overwrite 1 -o "$work/run"
        "$train_gpt" plan "${shape[@]}" --dp "$n" --machine "$work/machine$n" --compare "$work/run" |
            sed -nE 's/^ +(step|memory) +planned +([^ ,]+), measured +([^ ]+) .*/\1 \2 \3/p' >"$work/round"
        awk -v n="$n" -v round=$round '$1 == "step" { printf "%d rank(s), run %d: planned %s ms, measured %s ms\n", n, round, $2, $3 }' \
            "$work/round" >&2
        cat "$work/round" >>"$work/compared$n"
    done
    planned=$(awk '$1 == "step" { print $2; exit }' "$work/compared$n")
    read -r measured least most < <(awk '$1 == "step" { print $3 }' "$work/compared$n" | median)
    off=$(awk -v planned="$planned" -v measured="$measured" 'BEGIN { printf "%+.1f", 100 * (planned / measured - 1) }')
    within=$(awk -v off="$off" 'BEGIN { print (off >= -15 && off <= 15) ? "yes" : "no" }')
    [ "$within" = yes ] || [ "$n" -gt 2 ] || missed=1
    awk -v n="$n" -v planned="$planned" -v measured="$measured" -v least="$least" -v most="$most" -v off="$off" -v within="$within" '
        $1 == "memory" { memory = 100 * ($2 / $3 - 1) }
        END { printf "| %d | %.1f | %.1f (%.1f, %.1f) | %s%% | %s | %+.2f%% |\n", n, planned, measured, least, most, off,
                  within, memory }' "$work/compared$n"
done
exit $missed
