#!/usr/bin/env bash
# The tokenize tool and what the trainer makes of its output, from outside: a table of (exit code, message, arguments).
#
# TRAIN_GPT and TOKENIZE name the programs to test; by default those of the CPU build.
set -uo pipefail
cd "$(dirname "$0")/../.."
train_gpt=$(realpath "${TRAIN_GPT:-build/cpu-bf16/train_gpt}") || exit 70
tokenize=$(realpath "${TOKENIZE:-build/cpu/tokenize}") || exit 70
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 70
passed=0 failed=0

verdict() {   # STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $2"; fi
}

# expect CODE MESSAGE COMMAND...: the message may appear on either stream
expect() {
    local code=$1 message=$2 status
    shift 2
    timeout 120 "$@" >out 2>&1 </dev/null
    status=$?
    [ "$status" -eq "$code" ] && grep -qF -- "$message" out
    verdict $? "$*: exit code $status, expected $code; the message must contain: $message
$(sed 's/^/  | /' out | tail -n 8)"
}

# ---- corpora: bytes, and a vocabulary learned on the spot
for i in $(seq 1 400); do echo "the $i-th line of a text about nothing, number $((i * 7919 % 1000))"; done >text.txt
expect 0 "3000 validation tokens" "$tokenize" -q --tokenizer bytes --output bytes --val-tokens 3000 text.txt
expect 0 "a vocabulary of 300 tokens" "$tokenize" -q --train 300 --output learned text.txt
expect 0 "tokenizer learned (300 ids)" "$tokenize" -q --tokenizer learned --output learned --val-tokens 2000 text.txt
expect 0 "good: 2 shards" "$tokenize" --verify learned

# ---- the trainer refuses data that does not fit
tiny=(--layers 1 --heads 2 --channels 32 --seq-len 16 --micro-batch 2 --max-steps 1 --val-max-batches 2 --sample-every 0)
train() { echo "$train_gpt" --train-data "$1/*train*.bin" --val-data "$2/*val*.bin" "${tiny[@]}"; }
set -f   # patterns are train_gpt's to expand
expect 0 "step    1/1" $(train learned learned) --output-dir run --checkpoint-every 1
expect 65 "manifest.json: --train-data was tokenized with a vocabulary of 300 ids, the model has 257" $(train learned bytes) --vocab-size 257
expect 65 "manifest.json: --val-data was tokenized with a vocabulary of 257 ids, the model has 300" $(train learned bytes)
expect 65 "manifest.json: --val-data was tokenized with tokenizer bytes" $(train learned bytes) --vocab-size 512
expect 0 "step    1/1" $(train learned learned) --vocab-size 512
expect 0 "step    1/1" $(train learned learned) --layers 0 --heads 0 --channels 0 --model run/step_00000001
expect 0 "a vocabulary of 300 tokens" "$tokenize" -q --train 300 --split cl100k --min-count 3 --output other text.txt
expect 0 "other (300 ids)" "$tokenize" -q --tokenizer other --output other --val-tokens 2000 text.txt
expect 65 "but the model in run/step_00000001 was trained with a tokenizer of hash" \
    $(train other other) --layers 0 --heads 0 --channels 0 --model run/step_00000001
expect 65 "but the model in run/step_00000001 was trained with a tokenizer of hash" \
    $(train other other) --output-dir run --resume 1 --max-steps 2
cp learned/tokenizer.bin saved.bin && cp other/tokenizer.bin learned/tokenizer.bin
expect 65 "learned/tokenizer.bin: this tokenizer has the hash" $(train learned learned)
mv saved.bin learned/tokenizer.bin
cp learned/train_000000.bin saved.bin
printf 'A' | dd of=learned/train_000000.bin bs=1 seek=2000 conv=notrunc 2>/dev/null
expect 65 "learned/train_000000.bin: byte 1024: the tokens from here on have the hash" $(train learned learned)
mv saved.bin learned/train_000000.bin
cp learned/val_000000.bin learned/val_000001.bin
expect 65 "learned/val_000001.bin: learned/manifest.json does not list this file" $(train learned learned)
rm learned/val_000001.bin
set +f

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
