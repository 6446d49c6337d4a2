# Sourced by the test scripts of this folder: the programs to test, a folder to work in, and the count.
#
# Which build: DEVICE, VARIANT and PRECISIONS; TRAIN_GPT and TOKENIZE name programs of any other.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 70
export LC_ALL=C   # of sort, awk's decimal points, messages of the system
# what a batch system says of the job that the tests are in is not of the runs here
unset "${!SLURM_@}" "${!OMPI_COMM_@}" "${!PMI_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
device=${DEVICE:-cpu} variant=${VARIANT:-} precisions=${PRECISIONS:-bf16 fp32}
train_gpt=$(realpath -m "${TRAIN_GPT:-build/$device-bf16$variant/train_gpt}")
tokenize=$(realpath -m "${TOKENIZE:-build/$device$variant/tokenize}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

needs() {   # PROGRAMS...: ends the test where one has not been built
    local program
    for program; do
        [ -x "$program" ] || { echo "there is no $program: build it first" >&2 && exit 70; }
    done
}

verdict() {   # STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $2"; fi
}

# eventually PID COMMAND...: waits until the command succeeds. It fails where the process has ended and the command still
# fails, and after ten minutes, which no machine takes that is merely slow.
eventually() {
    local pid=$1 deadline=$((SECONDS + 600))
    shift
    until "$@"; do
        if ! kill -0 "$pid" 2>/dev/null; then "$@" && return || return 1; fi
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.02
    done
}

# A TCP port that nothing here uses, below those that outgoing connections are given.
free_port() {
    local port
    while port=$((10000 + SRANDOM % 20000)) && grep -qsi ":$(printf %04x $port) " /proc/net/tcp /proc/net/tcp6; do :; done
    echo $port
}

# expect CODE MESSAGE COMMAND...: the message may appear on either stream; both are then in $work/out. What stands in front
# of every command is in `program`.
program=()
expect() {
    local code=$1 message=$2 status
    shift 2
    timeout 600 "${program[@]}" "$@" >"$work/out" 2>&1 </dev/null
    status=$?
    [ "$status" -eq "$code" ] && grep -aqF -- "$message" "$work/out"
    verdict $? "${program[*]##*/} $*: exit code $status, expected $code; the message must contain: $message
$(tr -d '\0' <"$work/out" | sed 's/^/  | /' | tail -n 15)"
}

check() {   # NAME COMMAND...
    local status
    "${@:2}" >"$work/checked" 2>&1
    status=$?
    verdict $status "$1: $(tail -n 3 "$work/checked" | tr -d '\0')"
}

# has OPTIONS... PATTERN: whether standard input has it, of which all is read (grep -q leaves at the first place, and with
# pipefail what goes on writing fails).
has() {
    local text
    text=$(cat)
    grep -q "$@" <<<"$text"
}

# numbers_as_data COUNT VAL_TOKENS: the numbers from 1 to COUNT, each a line of $work/numbers.txt, and their bytes as tokens
# in $work/data, the first so many for validation.
numbers_as_data() {
    seq 1 "$1" >"$work/numbers.txt"
    "$tokenize" --tokenizer bytes --quiet --output "$work/data" --val-tokens "$2" "$work/numbers.txt" >/dev/null || exit 70
}

milliseconds() { echo $((${EPOCHREALTIME/./} / 1000)); }

# nothing_wrong NAME WRONG: passes if WRONG, which lists what is wrong, is empty
nothing_wrong() {
    [ -z "$2" ]
    verdict $? "$1"$'\n'"$(sed 's/^/    /' <<<"$2" | head -n 20)"
}

source dev/test/without_times.sh
records() { without_times "$1/metrics.jsonl"; }   # FOLDER of a run

# same_run STEP FOLDER OTHER: records but for times, and the state at the end, in the folder STEP. The note of what was
# still to be done after the last step, and of the best validation, may differ: who stops during the last validation has
# saved that step before.
noted_state() { sed -E 's/"(next|best_val_loss)": *("[a-z_ -]*"|[0-9.e+-]+|null)//g' "$1/run.json"; }
same_run() {
    cmp <(without_times_or_memory "$2/metrics.jsonl") <(without_times_or_memory "$3/metrics.jsonl") &&
        cmp "$2/main.log" "$3/main.log" && diff -rq -x manifest.json -x run.json "$2/$1" "$3/$1" &&
        cmp <(noted_state "$2/$1") <(noted_state "$3/$1")
}
