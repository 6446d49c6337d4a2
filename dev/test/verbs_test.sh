#!/usr/bin/env bash
# The verbs beside training, from outside: generate, evaluate, export and --version, on a small model that is trained
# here. A table of (exit code, what must be said, arguments) as in cli_test.sh, and what must be equal.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

run() { timeout 600 "$train_gpt" "$@" </dev/null; }
program=("$train_gpt")   # of expect: its arguments follow there
same() {   # NAME A B
    [ "$2" = "$3" ] && [ -n "$2" ]
    verdict $? "$1: '$2' and '$3'"
}

# documents of a line each, so that the model learns where a text ends; no word comes twice, so that what is learnt does
# not hang on the last bits of the arithmetic
for i in $(seq 1 1500); do echo "{\"text\": \"line $i: the quick brown fox jumps over my lazy dog in his café\"}"; done >"$work/text.jsonl"
"$tokenize" --tokenizer bytes --quiet --output "$work/data" --val-tokens 3000 "$work/text.jsonl" || exit 70
run --train-data "$work/data/*train*.bin" --layers 2 --heads 2 --channels 64 --seq-len 64 --micro-batch 8 --max-steps 200 \
    --lr 3e-3 --warmup 20 --final-lr-frac 0 --val-data "$work/data/*val*.bin" --val-every 100 --val-max-batches -1 \
    --sample-every 0 -n 100 -o "$work/run" \
    >"$work/log" || exit 70
last=$work/run/step_00000200

# ---- the verbs
expect 0 "train_gpt " --version
expect 0 "train_gpt generate --help" --help
expect 0 "Usage: train_gpt generate" generate --help
expect 0 "--top-p" generate --help
expect 0 "Usage: train_gpt evaluate" evaluate --help
expect 0 "Usage: train_gpt export" export --help
expect 0 "step    1/1" train --train-data "$work/data/*train*.bin" --layers 1 --heads 1 --channels 16 --seq-len 8 -x 1 -v 0 -s 0
expect 64 "expected one of train, generate, evaluate, export, check, plan, data, or none to train" genrate --model "$last"
expect 64 "--lr: not an option of \`train_gpt generate\`" generate --model "$last" --lr 1
expect 64 "--prompt: not an option of \`train_gpt train\`" --prompt x
for verb in generate evaluate export; do
    expect 64 "train_gpt $verb without --model" $verb
    case $verb in evaluate) also=(--val-data x) ;; export) also=(--output "$work/x") ;; *) also=() ;; esac
    expect 74 "missing: open failed" $verb --model "$work/missing" "${also[@]}"
    "$train_gpt" $verb --help | has -E -- '--(lr|train-data|config) '
    [ $? -eq 1 ]
    verdict $? "$verb --help lists only its own options"
done 2>/dev/null

# ---- a model that is no GPT-2 is read here, and refused by name where a format does not hold it
run --train-data "$work/data/*train*.bin" --layers 1 --heads 1 --channels 16 --seq-len 8 -x 1 -v 0 -s 0 --norm rms -o "$work/rms" >"$work/rms.log"
grep -q '"model_type": "train_gpt"' "$work/rms/step_00000001/config.json" && grep -q '"norm": "rms"' "$work/rms/step_00000001/config.json"
verdict $? "config.json of a model with RMSNorm says so"
expect 64 "--to hf: the model in $work/rms/step_00000001 has --norm rms" export --model "$work/rms" --output "$work/x"
expect 64 "--to llmc: the model in $work/rms/step_00000001 has --norm rms" export --model "$work/rms" --output "$work/x" --to llmc
expect 64 "--export-llmc together with --norm rms" --norm rms --export-llmc "$work/x"
expect 64 "--norm rms: the model in $last has layer" --model "$last" --norm rms --train-data "$work/data/*train*.bin" --seq-len 64 -v 0
expect 0 "step    1/1" train --model "$work/rms" --train-data "$work/data/*train*.bin" --seq-len 8 -x 1 -v 0 -s 0
expect 0 "x" generate --model "$work/rms" --prompt x --tokens 3

# ---- generate: the same text from every form of the model; streams, ends, seeds
greedy=(generate --prompt "line 12: the quick" --tokens 100 --temperature 0)
text=$(run "${greedy[@]}" --model "$last" 2>"$work/err")
same "what the model has learnt, and where it ends" "$text" "line 12: the quick brown fox jumps over my lazy dog in his café"
grep -qE "^a prompt of 18 tokens read in [0-9.]+ s; 46 tokens written, [0-9.]+ tokens/s$" "$work/err"
verdict $? "the speed: $(cat "$work/err")"
[[ "$(run "${greedy[@]}" --model "$last" --stop-at-end 0 2>"$work/err")" = "$text<|endoftext|>line "* ]] && grep -q " 100 tokens written" "$work/err"
verdict $? "on behind the end of the text: $(cat "$work/err")"
same "an output folder is its newest checkpoint" "$text" "$(run "${greedy[@]}" --model "$work/run" 2>/dev/null)"
printf 'line 12: the quick' >"$work/prompt"
same "--prompt-file" "$text" "$(run generate --prompt-file "$work/prompt" --tokens 100 --temperature 0 --model "$last" 2>/dev/null)"
same "standard input" "$text" "$("$train_gpt" generate --prompt-file - --tokens 100 --temperature 0 --model "$last" 2>/dev/null <"$work/prompt")"
drawn() { run generate --model "$last" --tokens 60 --temperature 2 "$@" 2>/dev/null; }
same "a seed's text" "$(drawn --seed 3)" "$(drawn --seed 3)"
[ "$(drawn --seed 3)" != "$(drawn --seed 4)" ]
verdict $? "another seed, another text"
same "--top-k 1 is greedy" "$(drawn --top-k 1)" "$(drawn --temperature 0)"
same "--top-p 0 is greedy" "$(drawn --top-p 0)" "$(drawn --temperature 0)"
[ "$(drawn --tokens 1000 --stop-at-end 0 | iconv -f utf-8 -t utf-8 | wc -c)" -ge 1000 ]
verdict $? "whole UTF-8 characters, more than the model's positions, and on after an end of text"
expect 64 "there is no tokenizer beside --model d12" generate --model d12
mkdir "$work/words" && "$tokenize" --train 300 --quiet --output "$work/words" "$work/text.jsonl" >/dev/null
expect 65 "$work/words/tokenizer.json has 300 ids, the model 257" generate --model "$last" --tokenizer "$work/words"
expect 64 "--prompt together with --prompt-file" generate --model "$last" --prompt a --prompt-file b
expect 64 "--top-p 2: expected a number from 0 to 1" generate --model "$last" --top-p 2
expect 74 "error: --prompt-file $work/none.txt: open failed" generate --model "$last" --prompt-file "$work/none.txt"
expect 65 "holds no config.json and no checkpoint" generate --model "$work/data"
run generate --model "$last" >/dev/full 2>"$work/err"
[ $? -eq 74 ] && grep -q "standard output: write failed: No space left on device" "$work/err"
verdict $? "a full disk: $(cat "$work/err")"
mkdir "$work/cut" && cp -r "$work/run/step_00000100" "$last" "$work/cut" && truncate -s -1 "$work/cut/step_00000200/run.json"
run "${greedy[@]}" --model "$work/cut" >"$work/out" 2>&1
grep -q "checkpoint passed over: .*step_00000200/run.json" "$work/out"
verdict $? "a damaged checkpoint is passed over: $(cat "$work/out")"
expect 0 "step_00000200" --train-data "$work/data/*train*.bin" --model "$work/run" --seq-len 64 -x 1 -v 0 -s 0

# ---- evaluate: what training said last
val=(--val-data "$work/data/*val*.bin")
loss() { run evaluate --model "$1" "${val[@]}" "${@:2}" | sed -nE 's/^val loss ([0-9.]+) .*/\1/p'; }
expected=$(sed -nE 's/^val loss ([0-9.]+)( .*)?$/\1/p' "$work/log" | tail -n 1)
same "the loss of a run's folder" "$expected" "$(loss "$work/run" -b 4)"
expect 0 "sequences of 64 tokens" evaluate --model "$last" "${val[@]}"
same "the loss on --data" "$expected" "$(run evaluate --model "$work/run" --data "$work/data" -b 4 | sed -nE 's/^val loss ([0-9.]+) .*/\1/p')"
mkdir "$work/val-alone" && cp "$work"/data/*val*.bin "$work/val-alone"
same "the loss on --data without training shards" "$expected" "$(run evaluate --model "$work/run" --data "$work/val-alone" -b 4 | sed -nE 's/^val loss ([0-9.]+) .*/\1/p')"
expect 0 "| 2 sequences of 16 tokens" evaluate --model "$last" "${val[@]}" -t 16 --val-max-batches 2
expect 64 "without --val-data, --data and --hellaswag" evaluate --model "$last"
expect 64 "do not fit a model of 64 positions" evaluate --model "$last" "${val[@]}" -t 128
expect 74 "--val-data $work/none*.bin: no file matches" evaluate --model "$last" --val-data "$work/none*.bin"
expect 74 "none.bin: open failed" evaluate --model "$last" --hellaswag --hellaswag-data "$work/none.bin"
le16() { for n in "$@"; do printf "\\x$(printf %02x $((n & 255)))\\x$(printf %02x $((n >> 8 & 255)))"; done; }
le32() { for n in "$@"; do le16 $((n & 65535)) $((n >> 16 & 65535)); done; }
# "lin" goes on with "e", not with "x": the first question is answered right, the second wrong
{ le32 20240522 1 2 26 && head -c 1008 /dev/zero &&
    le16 65535 26 0 0 2 3 108 105 110 1 101 1 120 65535 26 1 1 2 3 108 105 110 1 101 1 120; } >"$work/questions.bin"
expect 0 "HellaSwag: 1/2 = 0.500000" evaluate --model "$last" --hellaswag 1 --hellaswag-data "$work/questions.bin"

# ---- export: the same model in every form
expect 0 "$work/hf: 2 layers" export --model "$work/run" --output "$work/hf/"
expect 0 "from Hugging Face model $last" export --model "$work/run" --to llmc --output "$work/model.bin"
expect 0 "in fp32" export --model "$work/model.bin" --output "$work/wide" --dtype fp32 --tokenizer "$work/data"
expect 0 "in fp32" export --model "$work/wide" --to llmc --output "$work/wide.bin"
for model in "$work/hf" "$work/wide"; do
    same "the text of $model" "$text" "$(run "${greedy[@]}" --model "$model" 2>/dev/null)"
done
for model in "$work/model.bin" "$work/wide.bin"; do
    same "the text of $model" "$text" "$(run "${greedy[@]}" --model "$model" --tokenizer "$work/data" 2>/dev/null)"
    same "the loss of $model" "$expected" "$(loss "$model" -b 4)"
done
for file in model wide; do   # llm.c to Hugging Face to llm.c, in both types
    expect 0 "$work/$file-hf: 2 layers" export --model "$work/$file.bin" --output "$work/$file-hf" --tokenizer "$work/data"
    expect 0 "from Hugging Face model" export --model "$work/$file-hf" --to llmc --output "$work/$file-again.bin"
    check "$file.bin is the same bytes after Hugging Face's form" cmp "$work/$file.bin" "$work/$file-again.bin"
done
[ "$(cd "$work/hf" && echo *)" = "config.json generation_config.json model.safetensors tokenizer.bin tokenizer.json tokenizer_config.json" ]
verdict $? "the files of an export: $(ls "$work/hf")"
cp -r "$work/wide" "$work/one" && sed -i 's/"n_layer": 2/"n_layer": 1/' "$work/one/config.json"
for verb in "evaluate --val-data $work/data/*val*.bin" "export --output $work/one-layer"; do   # tensors that nobody reads
    # shellcheck disable=SC2086   # words, but no file names
    set -f
    expect 65 "the model of config.json has no tensor 'h.1.attn.c_attn.bias', " $verb --model "$work/one"
    expect 65 "the model of config.json has no tensor 'h.1.ln_1.weight', 'h.1.ln_2.weight'" $verb --model "$work/one" --ignore-tensors 'h.1.*.*.*,*.bias'
    expect 0 "" $verb --model "$work/one" --ignore-tensors 'h.1.*'
    set +f
done
# ---- an imported model: what its files say of the ends of texts goes through data, training and export
imported=$work/imported
cp -r "$work/hf" "$imported" && rm "$imported/tokenizer.bin"
echo '{"eos_token_id": [102, 256],  "bos_token_id": 256, "top_p": 0.90}' >"$imported/generation_config.json"
printf '{"eos_token": "f",  "chat_template": "{{ messages }}"}' >"$imported/tokenizer_config.json"
printf '{%% for m in messages %%}' >"$imported/chat_template.jinja"
same "a text ends at any of the ends" "line 12: the quick brown " "$(run "${greedy[@]}" --model "$imported" 2>/dev/null)"
"$tokenize" --tokenizer "$imported" --quiet --output "$work/told" "$work/text.jsonl" >"$work/out" 2>&1
verdict $? "data for an imported model: $(cat "$work/out")"
check "documents are separated by the end of a text" grep -q '"end_of_text": 256' "$work/told/manifest.json"
mkdir "$work/untold" && cp "$work"/told/train_*.bin "$work/untold"   # without a tokenizer: the model's is taken
for data in told untold; do
    expect 0 "step    1/1" --model "$imported" --train-data "$work/$data/*train*.bin" --seq-len 64 -x 1 --lr 0 -v 0 -s 0 -o "$work/of-$data"
    expect 0 "2 layers" export --model "$work/of-$data" --output "$work/of-$data-hf"
    for folder in "$work/of-$data/step_00000001" "$work/of-$data-hf"; do
        for file in generation_config.json tokenizer_config.json chat_template.jinja; do
            check "$file in $folder" cmp "$imported/$file" "$folder/$file"
        done
        check "ends in config.json of $folder" grep -A 1 '"eos_token_id": \[' "$folder/config.json"
        same "a text of $folder" "line 12: the quick brown " "$(run "${greedy[@]}" --model "$folder" 2>/dev/null)"
    done
done
echo '{"eos_token_id": "f"}' >"$imported/generation_config.json"
expect 65 'generation_config.json: offset 17: eos_token_id: "f" is not a token id' generate --model "$imported"
expect 0 "there is no tokenizer beside" export --model "$work/model.bin" --output "$work/bare"
expect 64 "$work/hf: there is something by that name already" export --model "$last" --output "$work/hf"
expect 64 "train_gpt export without --output" export --model "$last"
expect 64 "a size by name has no weights to export" export --model d12 --output "$work/d12"
expect 64 "--to onnx: expected one of hf|llmc" export --model "$last" --to onnx --output "$work/x"
expect 74 "/proc/model" export --model "$last" --output /proc/model

# ---- a checkpoint is what others expect: ids of begin and end, a tokenizer that encodes
for file in config.json generation_config.json; do
    grep -q '"eos_token_id": 256' "$last/$file" && grep -q '"bos_token_id": 256' "$last/$file"
    verdict $? "$file tells of the end of a text: $(cat "$last/$file")"
done
grep -q '"eos_token": "<|endoftext|>"' "$last/tokenizer_config.json"
verdict $? "tokenizer_config.json: $(cat "$last/tokenizer_config.json")"
"$tokenize" --tokenizer "$last" --quiet --output "$work/again" --val-tokens 3000 "$work/text.jsonl" &&
    cmp "$work/data/train_000000.bin" "$work/again/train_000000.bin"
verdict $? "tokenize --tokenizer CHECKPOINT makes the same tokens"

# ---- a checkpoint is used only as it was written
cp -r "$last" "$work/damaged"
model=$(ls "$work"/damaged/model-*.safetensors | head -n 1)
printf 'x' | dd of="$model" bs=1 seek=$(($(stat -c %s "$model") - 1)) conv=notrunc 2>/dev/null
for verb in "generate --prompt x" "evaluate --val-data $work/data/*val*.bin" "export --output $work/from-damaged"; do
    # shellcheck disable=SC2086   # words, but no file names
    set -f; expect 65 "${model##*/}" $verb --model "$work/damaged"; set +f
done

# ---- and by those others themselves, where they are installed: text and its end
exact=build/$device-fp32$variant/train_gpt
[ -x "$exact" ] || exact=$train_gpt
said=$("${PYTHON:-python3}" dev/reference/transformers_compare.py "$exact" "$last" --prompt "line 12: the quick" "line 700" "my lazy dog in" 2>&1)
case $? in
69) echo "SKIPPED Hugging Face's generate: ${said#SKIPPED: }" ;;
*)
    [[ "$said" != *DIFFERENT* && "$said" = *"then the end of the text"* ]]; verdict $? "Hugging Face's generate: $said"
    said=$("${PYTHON:-python3}" dev/reference/transformers_compare.py "$exact" "$last" --losses 2>&1)
    verdict $? "Hugging Face's losses of our checkpoint: $said"
    said=$("${PYTHON:-python3}" dev/reference/transformers_compare.py "$exact" "$work/made" --losses --make 2>&1)
    verdict $? "our losses of Hugging Face's models: $said"
    said=$("${PYTHON:-python3}" dev/reference/transformers_compare.py "$exact" "$work/families" --families 2>&1)
    verdict $? "Hugging Face's other families: $said"
    ;;
esac

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
