#!/usr/bin/env bash
# Too few threads, descriptors or too little address space: the program ends with 69 or 74 and names the limit.
source "$(dirname "$0")/common.sh"
needs "$train_gpt"
numbers_as_data 4000 2000
run=("$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 1 --heads 2 --channels 32
    --seq-len 32 --micro-batch 2 --max-steps 2 --sample-every 0)

# limited WORDS LIMIT COMMAND...: under `ulimit LIMIT` the command ends with 69 or 74 and says one of the words
limited() {
    local words=$1 limit=$2
    # shellcheck disable=SC2086   # an option and its value
    (ulimit $limit && exec "${@:3}") >"$work/out" 2>&1
    local code=$?
    [ $code -eq 69 ] || [ $code -eq 74 ]
    verdict $? "ulimit $limit: exit code $code, expected 69 or 74: $(tail -n 3 "$work/out")"
    grep -qE "$words" "$work/out"
    verdict $? "ulimit $limit: expected words of the limit ($words): $(tail -n 3 "$work/out")"
}

# the limit of processes counts those of a user, of whom there are no others: an identity that nobody else has here
other=()
if [ "$(id -u)" -eq 0 ]; then other=(setpriv --reuid=64999 --regid=64999 --clear-groups); fi
if [ "$(id -u)" -ne 0 ] || ! "${other[@]}" true 2>/dev/null; then
    echo "SKIPPED a limit of processes: it needs a user who has no others"
else
    chmod 755 "$work" "$work/data"
    for processes in 1 2 3; do
        TRAIN_GPT_THREADS=4 limited "ulimit -u" "-u $processes" "${other[@]}" "${run[@]}"
    done
fi
limited "ulimit -v" "-v 250000" "${run[@]}"
if [ "$device" = cpu ]; then   # there these limit the device's memory, and what does not fit is known before the first byte
    large=(--layers 8 --heads 8 --channels 1024)
    for limit in v d; do
        limited "too little memory: .* MiB by ulimit -$limit" "-$limit 400000" "${run[@]}" "${large[@]}"
        limited "^memory +WRONG .* MiB by ulimit -$limit" "-$limit 400000" "$train_gpt" check "${run[@]:1}" "${large[@]}"
    done
fi
# ranks that have no descriptors for each other say so at once, and do not wait for those that come
for descriptors in 8 20 40; do
    limited "ulimit -n" "-n $descriptors" scripts/launch.sh -n 3 "${run[@]}" --init-timeout 600
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
