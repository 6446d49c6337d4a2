# shellcheck shell=bash
# What the scripts of this folder share; sourced by them. A script says what it trains and how, then calls run:
#
#   recipe WORDS                       what it trains, and where its hyperparameters are from
#   data NAME                          tokens to train on: what data/fineweb.sh leaves in data/NAME
#   options --NAME VALUE...            of train_gpt, under every layout
#   layout GPUS --NAME VALUE...        besides, where there are GPUS or more, up to the next layout's; in rising order
#   published time|loss|hellaswag WORDS    what others have measured, with their names
#   run "$@"
#
# Each of them gets its data if absent, continues from the newest checkpoint in its output folder, and takes
#
#   --dry-run      say what would be done, and do nothing
#   --data-only    get the data, and end
#   --help         this
#   others         are train_gpt's, and win over the script's own
#
# and from the environment
#
#   GPUS=N NODES=N  GPUs of a node (else nvidia-smi counts them) and nodes (1); several nodes: scripts/multi_node/
#   TINY=1          a run of seconds on any machine: every option is kept, but sizes, steps and ranks (at most 8) are small
#   RUNS=DIR        where the output folder lies, named as the script; else runs
#   RESTARTS=N      how often a run that lost a rank is started again (3)
#   TRAIN_GPT=FILE TOKENIZE=FILE
#
# and from the scripts of multi_node/
#
#   LAUNCH=WORDS    what starts the ranks, @RANKS of them, @GPUS on each of @NODES nodes; else scripts/launch.sh
#   LAUNCH_SIGNAL=S what asks that to stop
#   AGAIN=WORDS     a command that sees to it that a stopped run is started again later
#
# Exit codes are train_gpt's: 75 where the same command continues the run.
set -euo pipefail
script=$(basename "$0" .sh)
self=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

about='' data='' asked='' child=''
arguments=() layouts=() layout_options=()
declare -A papers
# llm.c's letters that scripts look at, in words
declare -A letters=([-b]=--micro-batch [-t]=--seq-len [-d]=--total-batch [-x]=--max-steps [-o]=--output-dir [-e]=--model)
recipe() { about=$1; }
data() { data=$1; }
options() { arguments+=("$@"); }
layout() { layouts+=("$1") && layout_options+=("${*:2}"); }   # none of these options has blanks in it
published() { papers[$1]=$2; }

complain() {   # CODE MESSAGE...
    local code=$1
    shift
    printf "$script: %s\n" "$@" >&2
    exit "$code"
}
help() {
    sed -n '2s/^# //p' "$self"
    echo
    sed -n '/^# Each of them/,/^[^#]/s/^# \{0,1\}//p' scripts/recipe.sh
    exit 0
}

value() {   # NAME [DEFAULT]: of an option, the last one given
    local found=${2:-} i
    for ((i = 0; i < ${#arguments[@]} - 1; i++)); do
        [ "${arguments[i]}" != "$1" ] || found=${arguments[i + 1]}
    done
    echo "$found"
}
shrink() {   # NAME VALUE: where the option is given, this is its value
    local i
    for ((i = 0; i < ${#arguments[@]} - 1; i++)); do
        [ "${arguments[i]}" != "$1" ] || arguments[i + 1]=$2
    done
}

# ---- how many ranks, and what each of them does

count_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
    else
        { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true
    fi
}

choose_layout() {
    local i chosen=-1 largest=${layouts[-1]}
    gpus=${GPUS:-$(count_gpus)} nodes=${NODES:-1}
    if [ "$gpus" = 0 ] && [ -n "$tiny$dry_run" ]; then   # to look at: the largest one, on nodes of eight
        gpus=$((largest < 8 ? largest : 8)) nodes=${NODES:-$((largest < 8 ? 1 : largest / 8))} assumed=' (there is no GPU here: GPUS and NODES say how many)'
    fi
    [[ $gpus =~ ^[0-9]+$ && $nodes =~ ^[1-9][0-9]*$ ]] || complain 64 "GPUS=$gpus NODES=$nodes: expected numbers"
    [ "$gpus" -gt 0 ] || complain 69 "there is no GPU here, says nvidia-smi" "GPUS=1 takes one all the same; TINY=1 tries this script on a CPU."
    ranks=$((gpus * nodes))
    for i in "${!layouts[@]}"; do
        [ "${layouts[i]}" -gt $ranks ] || chosen=$i
    done
    [ $chosen -ge 0 ] || complain 64 "$ranks GPUs: this model has a layout for ${layouts[0]} or more" "GPUS=8 NODES=N are 8 x N of them."
    read -ra of_layout <<<"${layout_options[chosen]}"
    options "${of_layout[@]}"
}

set_mesh() {
    local name number
    for name in --tp --pp --cp --total-batch --seq-len --micro-batch; do
        number=$(value $name 1)
        [[ $number =~ ^[1-9][0-9]*$ ]] || complain 64 "$name $number: expected a number"
    done
    tp=$(value --tp 1) pp=$(value --pp 1) cp=$(value --cp 1)
    each=$((tp * pp * cp))   # ranks of a replica
    dp=$((ranks / each))
    batch=$(value --total-batch 0) context=$(value --seq-len 1024) steps=$(value --max-steps -1)
    unit=$(($(value --micro-batch 4) * context))   # tokens of a replica's micro-batch
}
check_mesh() {
    [ $((ranks % each)) -eq 0 ] && [ "$ranks" -ge $each ] ||
        complain 64 "$ranks GPUs: this layout takes a multiple of $each (--tp $tp --pp $pp --cp $cp)"
    local works='' n
    if [ $((batch % (unit * dp))) -ne 0 ]; then
        for ((n = 1; n <= 2 * dp; n++)); do [ $((batch % (unit * n))) -ne 0 ] || works+=" $((n * each))"; done
        complain 64 "$ranks GPUs: $batch tokens of a step cannot be shared out" "Numbers of GPUs that work:$works."
    fi
}

# Halves the script's micro-batch until a step can be shared out over more ranks than it was written for.
fit_micro_batch() {
    local rows
    rows=$(value --micro-batch 4)
    while [ $((batch % (rows * context * dp))) -ne 0 ] && [ $((rows % 2)) -eq 0 ]; do rows=$((rows / 2)); done
    [ $((batch % (rows * context * dp))) -ne 0 ] || shrink --micro-batch $rows
}
# Of an option that is given more than once the last value counts, the caller's in its own place; train_gpt would warn of
# the others.
once_each() {   # OPTIONS of the caller...
    local i kept=()
    local -A seen=()
    for ((i = 1; i <= $#; i++)); do [[ ${!i} != --* ]] || seen[${!i}]=yes; done
    for ((i = 0; i < ${#arguments[@]}; i++)); do
        if [[ ${arguments[i]} != --* || ${arguments[i + 1]:---} == --* ]]; then   # no value follows
            kept+=("${arguments[i]}")
            continue
        fi
        [ -n "${seen[${arguments[i]}]:-}" ] || kept+=("${arguments[i]}" "$(value "${arguments[i]}")")
        seen[${arguments[i]}]=yes
        i=$((i + 1))
    done
    arguments=("${kept[@]}" "$@")
}

# All options are kept; what takes time, memory or GPUs is small. The layout has two ranks of each axis that it has.
make_tiny() {
    set_mesh
    check_mesh
    local axis
    for axis in --tp --pp --cp --ep; do
        [ "$(value $axis 1)" -lt 2 ] || shrink $axis 2
    done
    set_mesh
    ranks=$((dp > 1 && each < 8 ? 2 * each : each))
    gpus=$((ranks / nodes))
    if [ $gpus -eq 0 ]; then gpus=$ranks nodes=1; fi
    case "$(value --model)" in   # a size, too
    llama:*) shrink --model llama:15M ;;
    *) shrink --model d4 ;;
    esac
    shrink --layers 4
    shrink --heads 4
    shrink --channels 32
    shrink --head-size 16
    shrink --experts 8
    shrink --experts-per-token 2
    shrink --expert-width 16
    shrink --seq-len 32
    shrink --micro-batch 1
    shrink --total-batch $((32 * (ranks / each) * 4))
    shrink --max-steps 4
    shrink --warmup 1
    shrink --val-max-batches 4
    shrink --sample-every 4
    shrink --sample-tokens 4
    shrink --checkpoint-every 2
}

# ---- data

need() { [ -x "$1" ] || complain 69 "$1 is not built" "Run make first."; }

# Prepared by data/fineweb.sh, which writes the manifest last, or brought here from elsewhere, as llm.c's are.
has_data() {
    compgen -G "$data_folder/*train*.bin" >/dev/null && compgen -G "$data_folder/*val*.bin" >/dev/null &&
        { [ -e "$data_folder/manifest.json" ] || [ ! -e "$data_folder/raw" ]; }
}
ways_to_get_data() {   # commands, a line each
    local size=${data##*fineweb} edu=''
    [[ $data != edu_* ]] || edu='--edu '
    has_data || echo "data/fineweb.sh $edu--size $size"
    [ -e "$questions" ] || [ "$(value --hellaswag 1)" = 0 ] || echo "data/hellaswag.sh"
}
make_tiny_data() {
    need "$tokenize"
    mkdir -p "$tiny_folder"
    (
        flock 9   # scripts that are tried at once
        [ ! -e "$data_folder/manifest.json" ] || [ ! -e "$questions" ] || exit 0
        seq 1 5000 >"$tiny_folder/numbers.txt"
        "$tokenize" --quiet --overwrite --tokenizer bytes --output "$data_folder" --val-tokens 3000 "$tiny_folder/numbers.txt" || exit
        echo '{"ctx": "1", "endings": ["2", "x"], "label": 0}' >"$tiny_folder/questions.jsonl"
        "$tokenize" --overwrite --questions hellaswag --tokenizer bytes --output "$questions" "$tiny_folder/questions.jsonl" >/dev/null
    ) 9>"$tiny_folder/lock"
}
get_data() {
    if [ -n "$tiny" ]; then
        make_tiny_data || exit
        return
    fi
    local ways way words
    mapfile -t ways < <(ways_to_get_data)
    for way in "${ways[@]}"; do
        [ "${NODE:-0}" = 0 ] || complain 69 "$data_folder or $questions is not there; node 0 gets them, with --data-only"
        echo "$script: $way"
        read -ra words <<<"$way"
        start "${words[@]}"
        [ -z "$asked" ] || end_at_request
        [ "$code" -eq 0 ] || exit "$code"
    done
}

# ---- what will be done

tokens_in_words() { awk -v n="$1" 'BEGIN { printf n < 1e9 ? "%.3g million" : "%.4g billion", n < 1e9 ? n / 1e6 : n / 1e9 }'; }
# The first line says what the rank takes that takes most, as the program counts it, so it checks the options, too. The
# others are its warnings about the layout.
memory_in_words() {
    local table code=0
    [ ! -e "$(value --model)" ] || { echo "the run prints a table of it before its first step" && return; }
    [ -x "$train_gpt" ] || { echo "the run prints a table of it before its first step; $train_gpt is not built" && return; }
    table=$("$train_gpt" "${arguments[@]}" --dp "$dp" --gpus-per-node "$gpus" --print-memory) || code=$?
    [ $code -ne 64 ] || return 64
    [ $code -eq 0 ] || { echo "cannot be counted here; the run prints a table of it before its first step" && return; }
    sed -nE 's/^  sum +([0-9.]+) MiB.*/\1/p; s/^  (not counted:.*)/\1/p' <<<"$table" |
        awk 'NR == 1 { printf "%.1f GiB of a GPU; ", $1 / 1024 } NR == 2'
    sed -n 's/^  warning: //p' <<<"$table"
}
describe() {
    local line way parallel="dp $dp" memory
    memory=$(memory_in_words)   # ends here where options are wrong
    [ "$tp" -eq 1 ] || parallel+=", tp $tp"
    [ "$pp" -eq 1 ] || parallel+=", pp $pp"
    [ "$cp" -eq 1 ] || parallel+=", cp $cp"
    echo "$about"
    [ -n "$tiny${LAUNCH:-}" ] || [ "$nodes" -eq 1 ] || parallel+="; started by a script of scripts/multi_node/"
    echo "  ranks          $ranks on $nodes node(s): $parallel${assumed:-}"
    echo "  step           $batch tokens: $((batch / (unit * dp))) micro-batches of $unit tokens on each of $dp replicas"
    echo "  steps          $steps, $(tokens_in_words $((steps * batch))) tokens in all"
    while read -r way; do echo "  data           $way"; done < <([ -n "$tiny" ] || ways_to_get_data)
    if compgen -G "$out/step_*" >/dev/null; then echo "  continues      from the newest checkpoint in $out"; fi
    echo "  memory         ${memory%%$'\n'*}"
    sed -n '2,$s/^/  warning        /p' <<<"$memory"
    for line in time loss hellaswag; do
        printf '  %-14s %s\n' "$line" "${papers[$line]:-not published, as far as we know}"
    done
    echo "  command        $(printf '%q ' "${command[@]}")"
}

# ---- the run

pass_on() {
    asked=$1
    [ -z "$child" ] || kill -s "${LAUNCH_SIGNAL:-$1}" "$child" 2>/dev/null || true
}
suspend() {
    [ -z "$child" ] || kill -s TSTP "$child"
    kill -s STOP $$
    [ -z "$child" ] || kill -s CONT "$child"
}
heed_signals() {
    local signal
    for signal in INT TERM HUP USR1; do
        # shellcheck disable=SC2064   # the name of now
        trap "pass_on $signal" $signal
    done
    trap suspend TSTP
}
# COMMAND...; sets code. It has a process group of its own: a terminal's Ctrl-C reaches it once, by way of this script.
start() {
    set -m
    "$@" &
    child=$!
    set +m
    [ -z "$asked" ] || pass_on "$asked"
    while :; do
        code=0
        wait "$child" || code=$?
        kill -s 0 "$child" 2>/dev/null || break   # else a signal has ended the waiting
    done
    child=''
    [ "$code" -le 128 ] || code=75   # killed
}
# Something will start the script again, where AGAIN says how and nobody asked for an end at a keyboard; else somebody must.
end_at_request() {
    local again=${AGAIN:-}
    case $asked in INT | TERM | HUP) again='' ;; esac
    [ -n "$again" ] || complain 75 "stopped; start this script again to continue the run in $out"
    echo "$script: $again" >&2
    $again || complain 75 "$again failed; start this script again to continue the run in $out"
    exit 75
}
# Where the run stands against what others have measured.
compare() {
    local found
    [ -f "$out/metrics.jsonl" ] || return 0
    found=$(sed -nE 's/.*"step":([0-9]+),"val_loss":([0-9.]+).*/\2 at step \1/p' "$out/metrics.jsonl" | tail -n 1)
    [ -z "$found" ] || echo "$script: validation loss $found; others: ${papers[loss]:-not published, as far as we know}"
}
train() {
    local left=${RESTARTS:-3}
    [ "$(value --time-limit 0)" = 0 ] || left=0   # its end is no loss of a rank
    while :; do
        start "${command[@]}"
        [ "$code" -ne 0 ] || compare
        [ "$code" -eq 75 ] || exit "$code"
        [ -z "${AGAIN:-}$asked" ] && [ "$left" -gt 0 ] || end_at_request
        left=$((left - 1))
        echo "$script: started again, to continue from the last checkpoint in $out" >&2
    done
}

run() {
    local passed_on=() data_only='' word
    tiny=${TINY:-} dry_run=''
    [ "$tiny" != 0 ] || tiny=''
    for word; do
        case $word in
            --dry-run) dry_run=yes ;;
            --data-only) data_only=yes ;;
            --help) help ;;
            --*=*) passed_on+=("${word%%=*}" "${word#*=}") ;;
            *) passed_on+=("${letters[$word]:-$word}") ;;
        esac
    done
    train_gpt=${TRAIN_GPT:-./train_gpt} tokenize=${TOKENIZE:-./tokenize}
    out=${RUNS:-runs}/${script#run_} data_folder=data/$data questions=data/hellaswag/hellaswag_val.bin
    tiny_folder=${RUNS:-runs}/tiny
    if [ -n "$tiny" ]; then
        out=$tiny_folder/${script#run_} data_folder=$tiny_folder/data questions=$tiny_folder/questions.bin
    fi
    heed_signals
    if [ -n "$data_only" ]; then
        get_data
        exit
    fi
    choose_layout
    # What differs between layouts is always said, because a run that continues keeps what it is not told. Those of the
    # script win; as many tokens of validation as llm.c's runs take, 10.5 million
    arguments=(--tp 1 --pp 1 --pp-schedule 1f1b --pp-chunks 1 --cp 1 --zero 0 --recompute gelu --grad-dtype fp32 --train-data "$data_folder/*train*.bin" --val-data "$data_folder/*val*.bin"
        --val-every 250 --val-max-batches $((10485760 / $(value --seq-len 1024)))
        --hellaswag 1 --hellaswag-data "$questions" --sample-every 20000 --sample-tokens 144
        --checkpoint-every 1000 --keep-checkpoints 3 --output-dir "$out" --resume 1 "${arguments[@]}")
    [ -z "$tiny" ] || make_tiny
    set_mesh
    [[ " ${passed_on[*]} " == *" --micro-batch "* ]] || fit_micro_batch
    once_each "${passed_on[@]}"
    set_mesh
    check_mesh
    out=$(value --output-dir "$out")

    local launch=${LAUNCH:-scripts/launch.sh -n @RANKS}
    [ -n "$tiny${LAUNCH:-}" ] || [ "$nodes" -eq 1 ] || launch=''
    launch=${launch//@RANKS/$ranks} launch=${launch//@GPUS/$gpus} launch=${launch//@NODES/$nodes}
    read -ra command <<<"$launch"
    command+=("$train_gpt" "${arguments[@]}")
    if [ -n "$dry_run" ]; then
        describe
        exit
    fi
    [ "$nodes" -eq 1 ] || [ -n "$tiny${LAUNCH:-}" ] || complain 64 "NODES=$nodes: one machine cannot start them; use a script of scripts/multi_node/"
    get_data
    need "$train_gpt"
    train
}
