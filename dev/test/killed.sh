#!/usr/bin/env bash
# Histories of kills. A run under one of 16 layouts, with or without --checkpoint-every, is killed at a random moment,
# resumed at once, killed again, one to four times; then it may end, and equals the layout's undisturbed run: records,
# main.log and the last checkpoint, byte for byte. A kill is -9 of a random rank, of all of them, of launch.sh, of both
# launch.sh and rank 0, or a SIGTERM. While ranks of a killed launch.sh are still alive, a resumed run is refused by the
# folder's lock, and tries again. Before a run is resumed its newest checkpoint may be damaged, if there is one before it,
# or an empty folder or a link that leads nowhere takes the name of a later one.
#
#   dev/test/killed.sh [FIRST LAST]     histories by number (1 to 64). A number stands for a layout, kills and moments.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
command -v pgrep >/dev/null || { echo "there is no pgrep: make deps installs it (procps)" >&2 && exit 70; }
first=${1:-1} last=${2:-64}
export TRAIN_GPT_THREADS=1

layouts=("1" "2 --zero 1" "2 --zero 2" "3 --zero 3" "2 --tp 2" "2 --pp 2" "2 --cp 2" "2 --cp 2 --cp-mode ulysses"
    "2 --pp 2 --pp-schedule interleaved --pp-chunks 2" "4 --zero 2 --zero-group 2" "4 --tp 2 --zero 1" "4 --tp 2 --pp 2"
    "4 --pp 2 --pp-schedule zb --zero 3" "4 --tp 2 --cp 2 --zero 2 --master-weights 0" "4 --cp 2 --pp 2 --recompute block"
    "4 --optimizer muon --zero 1 --tp 2")
steps=12 step=step_00000012
numbers_as_data 4000 2000
train() {   # LOG FOLDER RANKS ARGUMENTS...: in place of this shell
    exec scripts/launch.sh -n "$3" -g 20 "$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" \
        --layers 4 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --total-batch 768 --max-steps $steps --lr 1e-3 \
        --weight-decay 0.1 --val-every 5 --val-max-batches 12 --sample-every 0 --resume 1 --output-dir "$2" "${@:4}" >"$1" 2>&1
}
running() { pgrep -f -- "--output-dir $1( |$)"; }

declare -A took   # by the layout's number, ms
undisturbed() {   # NUMBER
    [ -z "${took[$1]:-}" ] || return 0
    local began
    began=$(milliseconds)
    # shellcheck disable=SC2086   # words
    (train "$work/whole-$1.log" "$work/whole-$1" ${layouts[$1]})
    verdict $? "undisturbed, ${layouts[$1]}: $(tail -n 3 "$work/whole-$1.log")"
    took[$1]=$(($(milliseconds) - began))
}

declare -A kills
refused=0
# kill_one KIND: of the run whose launch.sh is `pid`
kill_one() {
    local ranks
    mapfile -t ranks < <(pgrep -P "$pid" -f "$train_gpt")
    case $1 in
        rank) kill -9 "${ranks[$((RANDOM % (${#ranks[@]} > 0 ? ${#ranks[@]} : 1)))]:-none}" ;;
        all) kill -9 "${ranks[@]:-none}" ;;
        launch.sh) kill -9 "$pid" ;;
        launch.sh-and-rank-0) kill -9 "$pid" "${ranks[0]:-}" ;;
        SIGTERM) kill -TERM "$pid" ;;
    esac 2>/dev/null
}

damaged=0
# damage FOLDER: a checkpoint, or not
damage() {
    local saved=("$1"/step_????????) later
    later=$1/step_000000$((RANDOM % 3 + 12))
    [ -d "${saved[0]}" ] && ! running "$1" >/dev/null || return 0
    case $((RANDOM % 4)) in
        0) [ ${#saved[@]} -gt 1 ] && truncate -s 20 "${saved[-1]}/run.json" ;;
        1) mkdir "$later" ;;
        2) ln -sT nowhere "$later" ;;
        *) return 0 ;;
    esac 2>/dev/null && damaged=$((damaged + 1))
    return 0
}

one_history() {   # NUMBER
    local at=$((($1 - 1) % ${#layouts[@]})) kinds=(rank all launch.sh launch.sh-and-rank-0 SIGTERM) out=$work/history-$1 every
    local told="" left kind delay code pid log tries=0
    undisturbed $at
    every=$((($1 - 1) / ${#layouts[@]} % 2 == 0 ? 2 : 0))
    RANDOM=$1
    left=$((RANDOM % 4 + 1))
    while :; do
        log=$out.log.$((++tries))   # of its own: ranks of the run before may still write to theirs
        # shellcheck disable=SC2086   # words
        (train "$log" "$out" ${layouts[$at]} --checkpoint-every $every --keep-checkpoints $((every > 0 ? 2 : 0))) & pid=$!
        if [ $left -gt 0 ]; then
            kind=${kinds[$((RANDOM % ${#kinds[@]}))]} delay=$((RANDOM % took[$at]))
            sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
            kill -0 $pid 2>/dev/null && kill_one $kind
        fi
        wait $pid 2>/dev/null
        code=$?
        if grep -q 'another run is writing there' "$log"; then
            refused=$((refused + 1))
            [ $code -eq 64 ] || [ $code -gt 128 ] || [ $code -eq 75 ] || { told+=" refused with $code" && break; }
            continue
        fi
        [ $left -gt 0 ] && told+=" $kind after $delay ms: $code," && kills[$kind]=$((${kills[$kind]:-0} + 1))
        left=$((left - 1))
        case $code in
            0) break ;;
            75 | 137) [ $left -ge 0 ] || break ;;
            143) [ "${kind}" = SIGTERM ] || break ;;   # before launch.sh has begun
            *) break ;;
        esac
        damage "$out"
    done
    [ $code -eq 0 ] && same_run "$step" "$work/whole-$at" "$out"
    verdict $? "history $1, ${layouts[$at]}, --checkpoint-every $every:$told then $code: $(tail -n 5 "$log")"
    for _ in $(seq 100); do running "$out" >/dev/null && sleep 0.1 || break; done
    left=$(running "$out")
    [ -z "$left" ]
    verdict $? "history $1: processes remain:$told $(for pid in $left; do ps -o ppid=,stat=,etime=,wchan=,args= -p "$pid"; done)"
    rm -rf "$out"*
}
for ((number = first; number <= last; number++)); do one_history $number; done
echo "histories $first to $last:$(for kind in "${!kills[@]}"; do printf ' %d x %s,' "${kills[$kind]}" "$kind"; done)" \
    "$refused times refused while ranks of the run before were there, $damaged damaged checkpoints among the others"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
