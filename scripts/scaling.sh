#!/usr/bin/env bash
# Measures how training scales over 1, 2, 4, 8, ... ranks: tokens per second, efficiency, and the communication that no
# computation hides, by group of ranks. Weak scaling: a rank has as many tokens however many ranks there are. Strong
# scaling: a step has, those of the largest weak one, so with the most ranks the two are the same.
#
#   scripts/scaling.sh [options]
#   scripts/scaling.sh --model gpt3:1300M --seq-len 2048 --zero 1 --total-batch 131072
#   AXIS=tp scripts/scaling.sh --model gpt3:6700M --micro-batch 1
#   HOSTS=FILE scripts/multi_node/mpirun.sh scripts/scaling.sh [options]      or slurm.sh
#
# Options are train_gpt's; without them --model gpt2:124M --seq-len 1024 --micro-batch 4, on tokens that this script makes.
# --total-batch is the step of the most ranks, else a micro-batch for each. RUNS/scaling_of_ranks/ holds table.md,
# scaling.svg, scaling.jsonl, and what was measured of each number of ranks.
#
# Efficiency is tokens per second and rank, over those of the fewest ranks. It exceeds 100% where more ranks have less to do
# each: with --zero a smaller part of the update, with more memory less to recompute (--recompute LEVEL keeps that the
# same). Times are medians of all steps but the first. Without a GPU they are modelled: `train_gpt plan` replays the step
# of every number of ranks on the virtual clock of a machine (--gpu H100, or --machine FILE). A line above the table says
# which of the two it is.
#
#   --dry-run        say what would be run, and do nothing
#   --help           this
#
# and from the environment
#
#   AXIS=tp          the axis that the ranks are added to: dp (else), cp, tp, pp, or ep, which are dp ranks that share --experts;
#                    options give the others, except dp
#   RANKS="1 2 4"    which numbers of ranks; else 1, 2, 4, ... up to the GPUs there are, without a GPU up to 8
#   TIMES=measured   also without a GPU, where the ranks share the processor's cores; or TIMES=modelled, also with one
#   STEPS=N          of a measurement (12)
#   GPUS=N NODES=N   GPUs of a node (else nvidia-smi counts them) and nodes (1); several nodes: scripts/multi_node/
#   RUNS=DIR         where the folder of results lies; else runs
#   TRAIN_GPT=FILE TOKENIZE=FILE LOSS_CURVE=FILE
#   LAUNCH=WORDS     what starts the ranks, @RANKS of them, @GPUS on each of @NODES nodes; else scripts/launch.sh
#
# Exit codes are train_gpt's. What was measured before a failure is in scaling.jsonl.
# shellcheck source=scripts/recipe.sh
. "$(dirname "$0")/recipe.sh"

help() { sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//p}' "$self" && exit; }

export LC_ALL=C   # decimal points
dry_run='' given=() machine=()
for word; do
    word=${letters[$word]:-$word}
    case $word in
        --help) help ;;
        --dry-run) dry_run=yes ;;
        --output-dir | --output-dir=* | --resume | --resume=* | -y | --overwrite | --overwrite=* | --max-steps | --max-steps=*)
            complain 64 "$word: this script itself says where runs are and how long; RUNS=DIR and STEPS=N"
            ;;
        --dp | --dp=* | --processes | --processes=*) complain 64 "$word: follows from the number of ranks; RANKS=\"1 2 4\" says which" ;;
        --*=*) given+=("${word%%=*}" "${word#*=}") ;;
        *) given+=("$word") ;;
    esac
done

train_gpt=${TRAIN_GPT:-./train_gpt} tokenize=${TOKENIZE:-./tokenize} loss_curve=${LOSS_CURVE:-./loss_curve}
out=${RUNS:-runs}/scaling_of_ranks axis=${AXIS:-dp} run_steps=${STEPS:-12} nodes=${NODES:-1}
gpus=${GPUS:-$(count_gpus)}
[[ $axis =~ ^(dp|cp|tp|pp|ep)$ ]] || complain 64 "AXIS=$axis: expected dp, cp, tp, pp or ep"
[[ $run_steps =~ ^[1-9][0-9]*$ && $run_steps -ge 3 ]] || complain 64 "STEPS=$run_steps: expected 3 or more, because the first does not count"
[[ $gpus =~ ^[0-9]+$ && $nodes =~ ^[1-9][0-9]*$ ]] || complain 64 "GPUS=$gpus NODES=$nodes: expected numbers"
[ -z "${NODE:-}" ] || complain 64 "by_hand.sh starts the same ranks on every node; scripts/multi_node/mpirun.sh or slurm.sh can start fewer"
[ "$nodes" -eq 1 ] || [ -n "${LAUNCH:-}" ] || complain 64 "NODES=$nodes: one machine cannot start them; use a script of scripts/multi_node/"
times=${TIMES:-$([ "$gpus" -gt 0 ] && echo measured || echo modelled)}
[[ $times =~ ^(measured|modelled)$ ]] || complain 64 "TIMES=$times: expected measured or modelled"

# ---- which numbers of ranks, and the tokens of a step

has_option() { [[ " ${given[*]} " == *" $1 "* ]]; }
arguments=("${given[@]}") ranks=1
has_option --model || has_option --layers || arguments+=(--model gpt2:124M)
has_option --micro-batch || arguments+=(--micro-batch 4)
has_option --seq-len || arguments+=(--seq-len 1024)
own_data=''
if ! has_option --data && ! has_option --train-data; then
    own_data=yes
    has_option --vocab-size || arguments+=(--vocab-size 50257)   # GPT-2's, though the tokens are bytes
fi
set_mesh
! has_option "--$axis" || complain 64 "--$axis: AXIS=$axis says that this grows with the ranks"
most=$((gpus > 0 ? gpus * nodes : 8 * each))
numbers=${RANKS:-$(for ((n = each; n <= most; n *= 2)); do echo "$n"; done)}
[ -n "$numbers" ] || complain 64 "$most GPUs: this layout takes $each or more (--tp $tp --pp $pp --cp $cp)"
[[ $numbers =~ ^[1-9][0-9]*([[:space:],]+[1-9][0-9]*)*$ ]] || complain 64 "RANKS=$numbers: expected numbers of ranks, as in RANKS=\"1 2 4\""
numbers=$(tr -s ', \n' '\n' <<<"$numbers" | sort -nu)
most=$(tail -n 1 <<<"$numbers")
for n in $numbers; do
    [ $((n % each)) -eq 0 ] || complain 64 "$n ranks: this layout takes a multiple of $each (--tp $tp --pp $pp --cp $cp)"
    [ "$times" = modelled ] || [ "$gpus" -eq 0 ] || [ "$n" -le $((gpus * nodes)) ] ||
        complain 64 "$n ranks: there are $((gpus * nodes)) GPUs" "TIMES=modelled needs none."
    [ "$nodes" -eq 1 ] || [ "$n" -le "$gpus" ] || [ $((n % gpus)) -eq 0 ] ||
        complain 64 "$n ranks: cannot be the same number on every node of $gpus GPUs"
done

replicas() { if [[ $axis =~ ^(dp|ep)$ ]]; then echo $(($1 / each)); else echo 1; fi; }
[ "$batch" -gt 0 ] || batch=$((unit * most / each))   # a micro-batch for every rank's share
for n in $numbers; do
    share=$((unit * $(replicas "$n")))
    [ $((batch * n % most)) -eq 0 ] && [ $((batch * n / most % share)) -eq 0 ] && [ $((batch % share)) -eq 0 ] ||
        complain 64 "$n ranks: $batch tokens, a step of $most ranks, cannot be shared out" "--total-batch $((unit * most / each)), or a multiple of it, can."
done
kept=()
for ((i = 0; i < ${#arguments[@]}; i++)); do   # each run has a --total-batch of its own
    if [ "${arguments[i]}" = --total-batch ]; then i=$((i + 1)); else kept+=("${arguments[i]}"); fi
done
arguments=("${kept[@]}")
has_option --gpu || has_option --machine || machine=(--gpu H100)

tokens_of() { if [ "$1" = weak ]; then echo $((batch * $2 / most)); else echo "$batch"; fi; }   # weak|strong RANKS
set_command() {   # weak|strong RANKS: sets command and folder
    local n=$2 launch=${LAUNCH:-scripts/launch.sh -n @RANKS} shape
    folder=$out/$1-$n
    shape=("${arguments[@]}" --total-batch "$(tokens_of "$1" "$n")" --dp "$(replicas "$n")")
    [ "$axis" = dp ] || shape+=("--$axis" $((n / each)))
    if [ "$times" = modelled ]; then
        command=("$train_gpt" plan "${shape[@]}" "${machine[@]}" --json 1)
        return
    fi
    launch=${launch//@RANKS/$n} launch=${launch//@GPUS/$((gpus > 0 && n > gpus ? gpus : n))}
    launch=${launch//@NODES/$((gpus > 0 && n > gpus ? n / gpus : 1))}
    read -ra command <<<"$launch"
    command+=("$train_gpt" "${shape[@]}")
    [ -z "$own_data" ] || command+=(--train-data "$out/data/*train*.bin")
    command+=(--max-steps "$run_steps" --val-every 0 --sample-every 0 --checkpoint-every 0 --output-dir "$folder" --overwrite 1)
}

# ---- points: tokens per second|milliseconds of a step|GROUP:MILLISECONDS,... exposed

point_of_plan() {   # of plan's JSON
    awk -F': ' '
        { sub(/^ */, ""); sub(/,$/, ""); gsub(/"/, "") }
        $1 == "step_seconds" { step = 1e3 * $2 }
        $1 == "tokens_per_second" { speed = $2 }
        $1 == "groups" { groups = 1 }
        $1 == "name" { name = $2 }
        $1 == "exposed_seconds" && groups && $2 > 0 { exposed = exposed sprintf("%s\"%s\":%.6g", exposed ? "," : "", name, 1e3 * $2) }
        END { printf "%.8g|%.8g|%s\n", speed, step, exposed }' "$1"
}
point_of_run() {   # of its metrics.jsonl
    awk '
        function number(key) { return match($0, "\"" key "\":[-0-9.e+]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "" }
        /"loss":/ && /"step_ms":/ && steps++ {   # all but the first
            print "tokens_per_s", number("tokens_per_s")
            print "step_ms", number("step_ms")
            if (!match($0, /"exposed_ms":\{[^}]*\}/)) next
            count = split(substr($0, RSTART + 14, RLENGTH - 15), groups, ",")
            for (i = 1; i <= count; i++) {
                split(groups[i], group, ":"); gsub(/ /, "~", group[1])
                print group[1], group[2]
            }
        }' "$1" | sort -k1,1 -k2,2g | awk '
        function flush() {
            if (name == "") return
            median = (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
            gsub(/~/, " ", name)
            if (name == "tokens_per_s") speed = median
            else if (name == "step_ms") step = median
            else exposed = exposed sprintf("%s%s:%.6g", exposed ? "," : "", name, median)
        }
        $1 != name { flush(); name = $1; count = 0 }
        { values[++count] = $2 }
        END { flush(); printf "%.8g|%.8g|%s\n", speed, step, exposed }'
}
measure() {   # weak|strong RANKS: a line of scaling.jsonl
    local scaling=$1 n=$2 speed step exposed output log
    [ "$n" -ne "$most" ] || scaling=weak   # the same then
    set_command "$scaling" "$n"
    output=$folder/metrics.jsonl log=$folder.log
    [ "$times" = measured ] || output=$folder.json
    if [ "$1" = "$scaling" ]; then
        if [ "$times" = measured ]; then start "${command[@]}" >"$log" 2>&1; else start "${command[@]}" >"$output" 2>"$log"; fi
        [ -z "$asked" ] || complain 75 "stopped; what was measured is in $out/scaling.jsonl"
        [ "$code" -eq 0 ] || complain "$code" "$scaling scaling, ranks: $n: ended with $code; see $log" "$(tail -n 3 "$log")"
        rm -rf "$folder"/step_*   # the checkpoint at the end
        ! grep -qs '^ "fits": false' "$output" || notes+=("$scaling, ranks: $n: does not fit into the memory of the device")
    fi
    IFS='|' read -r speed step exposed < <(if [ "$times" = measured ]; then point_of_run "$output"; else point_of_plan "$output"; fi)
    awk -v speed="$speed" -v n="$n" -v first="${first_of[$1]:=$(awk -v s="$speed" -v n="$n" 'BEGIN { printf "%.10g", s / n }')}" \
        -v scaling="$1" -v tokens="$(tokens_of "$1" "$n")" -v step="$step" -v exposed="$exposed" 'BEGIN {
        printf "{\"scaling\":\"%s\",\"ranks\":%d,\"tokens\":%d,\"tokens_per_s\":%s,\"efficiency\":%.6g,\"step_ms\":%s,\"exposed_ms\":{%s}}\n",
               scaling, n, tokens, speed, speed / n / first, step, exposed }' >>"$out/scaling.jsonl"
}

table() {   # of scaling.jsonl
    echo "| scaling | ranks | tokens of a step | tokens/s | efficiency | step, ms | exposed communication, ms (share of the step) |"
    echo "|---|---|---|---|---|---|---|"
    sed -E 's/^\{"scaling":"([a-z]+)","ranks":([0-9]+),"tokens":([0-9]+),"tokens_per_s":([^,]+),"efficiency":([^,]+),"step_ms":([^,]+),"exposed_ms":\{(.*)\}\}$/\1|\2|\3|\4|\5|\6|\7/' "$out/scaling.jsonl" |
        awk -F'|' '{
            exposed = ""
            count = split($7, groups, ",")
            for (i = 1; i <= count; i++) {
                split(groups[i], group, ":"); gsub(/"/, "", group[1])
                exposed = exposed sprintf("%s%s %.2f (%.1f%%)", i > 1 ? ", " : "", group[1], group[2], 100 * group[2] / $6)
            }
            printf "| %s | %d | %d | %.0f | %.1f%% | %.2f | %s |\n", $1, $2, $3, $4, 100 * $5, $6, exposed == "" ? "-" : exposed
        }'
}

# ---- the runs

if [ "$times" = modelled ]; then
    about="modelled, not measured: \`train_gpt plan\` replays a step on the virtual clock of ${machine[*]:-the given machine}"
elif [ "$gpus" -gt 0 ]; then
    about="measured: medians of $((run_steps - 1)) steps"
else
    about="measured: medians of $((run_steps - 1)) steps; there is no GPU, so $(nproc) cores are shared by all ranks"
fi
about+="; $axis grows with the ranks: $(printf '%q ' "${arguments[@]}")"
if [ -n "$dry_run" ]; then
    echo "$about"
    for scaling in weak strong; do
        for n in $numbers; do
            [ "$scaling$n" != "strong$most" ] || continue
            set_command $scaling "$n"
            echo "  $scaling, ranks: $n: $(printf '%q ' "${command[@]}")"
        done
    done
    exit
fi
need "$train_gpt"
need "$loss_curve"
heed_signals
mkdir -p "$out"
: >"$out/scaling.jsonl"
if [ "$times" = measured ] && [ -n "$own_data" ]; then
    need "$tokenize"
    seq 1 "$((batch + context))" >"$out/numbers.txt"   # of which each is two bytes or more
    "$tokenize" --quiet --overwrite --tokenizer bytes --output "$out/data" "$out/numbers.txt" >"$out/data.log" 2>&1 ||
        complain $? "no data: $(tail -n 3 "$out/data.log")"
fi
declare -A first_of=()
notes=()
for scaling in weak strong; do
    for n in $numbers; do measure $scaling "$n"; done
done
{
    echo "$about"
    [ "$times" = modelled ] || sed -nE 's/.*"device": *"([^"]*)".*/device: \1/p' "$out/weak-$most/options.json"
    echo
    table
    [ ${#notes[@]} -eq 0 ] || { echo && printf '%s\n' "${notes[@]}"; }
} >"$out/table.md"
cat "$out/table.md"
"$loss_curve" --scaling "$out/scaling.jsonl" -o "$out/scaling.svg"
echo
echo "table: $out/table.md, picture: $out/scaling.svg"
