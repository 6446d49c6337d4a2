#!/usr/bin/env bash
# Trains a small model once for every combination of values, and compares the runs: one table, one picture.
#
#   scripts/sweep.sh FOLDER NAME=VALUE,VALUE... [NAME=VALUE...] -- OPTIONS
#   scripts/sweep.sh runs/rates optimizer=adamw lr=1e-3,2e-3,4e-3 seed=1,2 -- --data tinyshakespeare --layers 4 ...
#
# NAME and OPTIONS are train_gpt's; every combination is a run in a folder of FOLDER that is called after its values.
# FOLDER/table.md has a row for each combination, the best first, its seeds together; FOLDER/losses.svg the losses of the
# best six, the mean of their seeds. Both tell of all runs in FOLDER, so other values can be added by another command.
# The same command after a crash or Ctrl-C goes on where it was: what is done stays, what was cut is resumed.
#
#   --help         this
#   TARGET=LOSS    the table says, too, at which step a validation was first at or below that loss
#   TRAIN_GPT=FILE LOSS_CURVE=FILE
#
# Exit codes are train_gpt's: 75 where the same command goes on. A run that diverges is a row that says so.
set -euo pipefail
script=$(basename "$0" .sh)
train_gpt=${TRAIN_GPT:-./train_gpt} loss_curve=${LOSS_CURVE:-./loss_curve} target=${TARGET:-}

complain() {   # CODE MESSAGE...
    local code=$1
    shift
    printf "$script: %s\n" "$@" >&2
    exit "$code"
}

folder='' names=() lists=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
        [a-z]*=*)
            [ -n "$folder" ] || complain 64 "$1: the folder comes first" "scripts/$script.sh --help"
            names+=("${1%%=*}") lists+=("${1#*=}")
            [[ ,${1#*=}, != *,,* ]] || complain 64 "$1: a value is empty"
            ;;
        *)
            [ -z "$folder" ] || complain 64 "$1: expected NAME=VALUE,VALUE... or --" "scripts/$script.sh --help"
            folder=$1
            ;;
    esac
    shift
done
[ ${#names[@]} -gt 0 ] || complain 64 "expected FOLDER NAME=VALUE,VALUE... -- OPTIONS" "scripts/$script.sh --help"
[ $# -gt 0 ] && shift
for option in "$@"; do
    case ${option%%=*} in
        --output-dir | -o | --resume | -y | --overwrite) complain 64 "$option: the sweep itself says where runs are" ;;
    esac
done
[[ $target =~ ^([0-9]+\.?[0-9]*)?$ ]] || complain 64 "TARGET=$target: expected a loss"
for program in "$train_gpt" "$loss_curve"; do
    [ -x "$program" ] || complain 69 "there is no $program" "Build it with make."
done
mkdir -p "$folder"

combinations=('')   # --NAME VALUE ...
for i in "${!names[@]}"; do
    longer=()
    for combination in "${combinations[@]}"; do
        for value in ${lists[i]//,/ }; do longer+=("$combination --${names[i]} $value"); done
    done
    combinations=("${longer[@]}")
done

# A request to stop is the run's at hand, which saves and ends with 75.
train_one() {   # RUN OPTIONS...
    local run=$1 code=0 asked
    shift
    asked="$*"
    if [ -e "$run/sweep" ] && [ "$(sed 1d "$run/sweep")" = "$asked" ]; then
        echo "$run: done before"
        return
    fi
    mkdir -p "$run"
    "$train_gpt" "$@" --output-dir "$run" --resume 1 >>"$run/log" 2>&1 &
    trap 'kill -TERM %% 2>/dev/null || true' INT TERM HUP
    wait $! || code=$?
    [ "$code" -le 128 ] || { code=0 && wait $! || code=$?; }   # the signal has ended the waiting alone
    trap - INT TERM HUP
    case $code in
        0) echo "$run: done" ;;
        65) echo "$run: ended with 65, see $run/log" ;;   # diverged, or its data are bad
        *) complain $code "$run: train_gpt ended with $code" "$(tail -n 3 "$run/log")" ;;
    esac
    printf '%s\n%s\n' $code "$asked" >"$run/sweep"
}

summary() {   # RUN: configuration, losses and steps for the table
    local run=$1
    sed -nE 's/.*"step":([0-9]+),"val_loss":([-0-9.e+]+).*/validation \1 \2/p; s/.*"step_ms":([-0-9.e+]+).*/time \1/p' "$run/metrics.jsonl" |
        awk -v run="$(basename "$run")" -v target="$target" -v code="$(sed -n 1p "$run/sweep" 2>/dev/null || echo unfinished)" '
            $1 == "validation" && $2 > 0 {
                last = $3
                if (lowest == "" || $3 < lowest) { lowest = $3; at = $2 }
                if (target != "" && reached == "" && $3 <= target) reached = $2
            }
            $1 == "time" { times[n++] = $2 }
            END {
                for (i = 1; i < n; i++) for (j = i; j > 0 && times[j] < times[j - 1]; j--) {
                    swap = times[j]; times[j] = times[j - 1]; times[j - 1] = swap
                }
                configuration = run
                sub(/_?seed-[0-9]+/, "", configuration)
                sub(/^_/, "", configuration)
                if (configuration == "") configuration = "all"
                if (code != 0 || last == "") last = lowest = "-"
                print configuration, run, last, lowest, (reached == "" ? "-" : reached), (n ? times[int(n / 2)] : 0), code
            }'
}

table() {   # of summaries, the best configuration first
    awk -v target="$target" '
        { c = $1; if (!(c in runs)) order[count++] = c; runs[c]++ }
        $3 == "-" { bad[c] = $7; next }
        {
            good[c]++; sum[c] += $3; squares[c] += $3 * $3; time[c] += $6
            if (!(c in low) || $4 < low[c]) low[c] = $4
            if ($5 != "-") {
                reached[c]++; steps[c] += $5
                if (!(c in first) || $5 < first[c]) first[c] = $5
                if ($5 > latest[c]) latest[c] = $5
            }
        }
        END {
            for (i = 0; i < count; i++) {
                c = order[i]
                if (!good[c]) { printf "1e9 | %s | %d | ended with %s | | |%s\n", c, runs[c], bad[c], (target == "" ? "" : " |"); continue }
                mean = sum[c] / good[c]
                variance = good[c] > 1 ? (squares[c] - good[c] * mean * mean) / (good[c] - 1) : 0
                loss = sprintf("%.4f", mean)
                if (good[c] > 1) loss = loss sprintf(" +- %.4f", sqrt(variance > 0 ? variance : 0))
                if (good[c] < runs[c]) loss = loss sprintf(", %d ended with %s", runs[c] - good[c], bad[c])
                to = ""
                if (target != "") {
                    to = !reached[c] ? " never |" : sprintf(" %.0f (%d to %d)%s |", steps[c] / reached[c], first[c], latest[c],
                                                             reached[c] < runs[c] ? ", " reached[c] " of " runs[c] : "")
                }
                printf "%.9f | %s | %d | %s | %.4f | %.1f |%s\n", mean, c, runs[c], loss, low[c], time[c] / good[c], to
            }
        }' | sort -g | cut -d' ' -f2-
}

for combination in "${combinations[@]}"; do
    read -ra values <<<"$combination"
    name=${combination# --} name=${name// --/_} name=${name// /-}
    train_one "$folder/${name//\//.}" "$@" "${values[@]}"
done

summaries=$(for run in "$folder"/*/metrics.jsonl; do summary "$(dirname "$run")"; done)
{
    echo "| run | seeds | last validation loss | lowest | ms a step |${target:+ steps to $target |}"
    echo "|---|---|---|---|---|${target:+---|}"
    table <<<"$summaries"
} >"$folder/table.md"
cat "$folder/table.md"

# RUN...: metrics of their mean, of the steps that all of them have
mean() {
    awk '
        match($0, /"(val_)?loss":[-0-9.e+]+/) {
            split(substr($0, RSTART, RLENGTH), value, ":")
            match($0, /"step":[0-9]+/)
            at = substr($0, RSTART, RLENGTH) "," value[1]
            if (!(at in runs)) order[count++] = at
            runs[at]++
            sum[at] += value[2]
        }
        END {
            for (i = 0; i < count; i++) {
                if (runs[order[i]] == ARGC - 1) printf "{%s:%.8f}\n", order[i], sum[order[i]] / runs[order[i]]
            }
        }' "${@/%//metrics.jsonl}"
}

means=$(mktemp -d) best=()
trap 'rm -rf "$means"' EXIT
while read -r configuration; do
    mapfile -t runs < <(awk -v c="$configuration" '$1 == c && $3 != "-" { print $2 }' <<<"$summaries")
    if [ ${#runs[@]} -eq 0 ] || [ ${#best[@]} -eq 6 ]; then continue; fi
    best+=("$means/$configuration")
    mkdir "${best[-1]}"
    mean "${runs[@]/#/$folder/}" >"${best[-1]}/metrics.jsonl"
done < <(sed '1,2d; s/^| //; s/ |.*//' "$folder/table.md")
[ ${#best[@]} -gt 0 ] || complain 65 "no run has ended well: there is nothing to draw" "See $folder/*/log."
"$loss_curve" "${best[@]}" ${target:+"target=$target"} -o "$folder/losses.svg"
echo "table: $folder/table.md, picture: $folder/losses.svg"
