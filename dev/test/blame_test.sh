#!/usr/bin/env bash
# What is wrong is blamed, and not something else: mistakes that once led to a message about another thing.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
cd "$work" || exit 70

for i in $(seq 1 400); do echo "the $i-th line of a text about nothing, number $((i * 7919 % 1000))"; done >text.txt
"$tokenize" -q --train 300 --output data text.txt >/dev/null &&
    "$tokenize" -q --tokenizer data --output data --val-tokens 2000 --shard-tokens 3000 text.txt >/dev/null || exit 70
shape=(--layers 1 --heads 2 --channels 32 --seq-len 16 --micro-batch 2 --max-steps 1 --val-max-batches 2 --sample-every 0)
run=("$train_gpt" "${shape[@]}" --train-data 'data/train*.bin' --val-data 'data/val*.bin')

# ---- data that is not there, before anything that follows from it
expect 74 "--train-data data/trian*.bin: no file matches this pattern" "${run[@]}" --train-data 'data/trian*.bin'
expect 74 "--val-data data/vla*.bin: no file matches this pattern" "${run[@]}" --val-data 'data/vla*.bin'
expect 64 "data/train_000001.bin: this file follows no option" "$train_gpt" "${shape[@]}" --val-every 0 --train-data data/train*.bin
expect 64 "write --train-data 'FOLDER/*train*.bin', with the quotes" "$train_gpt" --train-data data/train*.bin
cp -r data 'data[1]'
expect 0 "step    1/1" "${run[@]}" --train-data 'data[1]/train_000000.bin'
cp data/train_000000.bin '[0-9].bin' && cp data/tokenizer.bin data/manifest.json .
expect 65 "[0-9].bin: ./manifest.json does not list this file" "${run[@]}" --train-data './[0-9].bin'

# ---- models
expect 64 "there is no model named 'gpt2'" "$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --model gpt2
expect 64 "Known are gpt2:124M" "$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --model gpt2
expect 64 "heads of 512 channels, which no attention serves" "${run[@]}" --heads 1 --channels 512
expect 64 "heads of 512 channels, which no attention serves" "${run[@]}" --heads 1 --channels 512 --attention own
expect 0 "checkpoint untied/step_00000001" "${run[@]}" --tie-embeddings 0 -o untied
cp -r untied/step_00000001 tied && rm tied/manifest.json && sed -i '/tie_word_embeddings/d' tied/config.json
expect 65 "tensor 'lm_head.weight' differs from 'wte.weight', but config.json ties them" \
    "$train_gpt" evaluate --model tied --val-data 'data/val*.bin'
expect 65 "write \"tie_word_embeddings\": false into config.json" "$train_gpt" export --model tied --output untied-model
mkdir devices && ln -s /dev/zero devices/config.json
expect 74 "devices/config.json: is a device, expected a file" "$train_gpt" generate --model devices --prompt x
expect 74 "/dev/zero: is a device, expected a file" "$train_gpt" generate --model /dev/zero --prompt x
expect 74 "/dev/zero: is a device, expected a file" "$tokenize" -q --tokenizer /dev/zero --output none text.txt
[ ! -e none ] && [ ! -e untied-model ]
verdict $? "nothing is made of what is refused"

# ---- files that are written at the end are tried at the start
ln -s /dev/null device   # not the device itself: a program that fails this test would replace it
expect 64 "--export-llmc device: is a device, expected the name of a file" "${run[@]}" --export-llmc device
expect 64 "--export-llmc data: is a folder, expected the name of a file" "${run[@]}" --export-llmc data
expect 74 "none/model.bin.tmp: create failed: No such file" "${run[@]}" --export-llmc none/model.bin
[ "$(grep -c '^step' out)" -eq 0 ] && [ -L device ]
verdict $? "nothing was trained for a file that cannot be written"
expect 74 "none/trace.json.tmp: create failed" "${run[@]}" --trace none/trace.json

# ---- configurations
printf '# a comment with = in it\nlr=0.1\n\nlearning-rate = 3\n' >bad.cfg
expect 64 "--config bad.cfg: line 4: --learning-rate: unknown option" "$train_gpt" --config bad.cfg
printf 'warmupp=3\n' >bad.cfg
expect 64 "Did you mean --warmup?" "$train_gpt" --config=bad.cfg
printf 'lr=0.1\n\nmicro-batch = two\n' >bad.cfg
expect 64 "--config bad.cfg: line 3: --micro-batch two: expected an integer" "$train_gpt" --config bad.cfg
expect 74 "--config /dev/zero: is a device, expected a file" "$train_gpt" --config /dev/zero
expect 74 "--config data: is a folder, expected a file" "$train_gpt" --config=data
expect 0 "lr=0.5" bash -c 'echo lr=0.5 | "$0" --config /dev/stdin --print-config' "$train_gpt"

# ---- text
printf 'some text<|endoftext|>' >special.txt
expect 65 "special.txt: offset 0: byte 9 of the text is the special token <|endoftext|>" \
    "$tokenize" -q --tokenizer data --special refuse --output special special.txt

# ---- start-up, links, memory
expect 64 "--init-folder mistyped: there is no such folder" "${run[@]}" --init fs --init-folder mistyped --processes 2 --process-rank 0
[ ! -e mistyped ]
verdict $? "a mistyped folder is not made"
ln -s loop loop
for option in --train-data --val-data --model --output-dir --config --hellaswag-data; do
    extra=()
    [ $option = --model ] && extra=(--layers 0 --heads 0 --channels 0)
    [ $option = --hellaswag-data ] && extra=(--hellaswag 1)
    named=loop
    [ $option = --hellaswag-data ] && named="--hellaswag-data ./loop: "   # not of the command line but of options.json, perhaps
    expect 74 "$named" "${run[@]}" "${extra[@]}" $option ./loop
done
mkdir out-loop && ln -s loop out-loop/metrics.jsonl && ln -s loop out-loop/loop
expect 74 "Too many levels of symbolic links" "${run[@]}" --output-dir out-loop
expect 74 "Too many levels of symbolic links" "$tokenize" --verify loop
if [ "$device" = cpu ]; then
    expect 69 "MiB by ulimit -v" env TRAIN_GPT_THREADS=2 bash -c 'ulimit -v 400000; "$@"' _ "${run[@]}" --channels 4096 --heads 32 --layers 8
    least=8000   # KiB in which it starts, with the libraries that it was built with
    until bash -c 'ulimit -v "$1"; exec "$2" --help' _ $least "$tokenize" >/dev/null 2>&1; do least=$((least + 1000)); done
    expect 69 "too little memory" bash -c "ulimit -v $((least + 1000))"'; "$@"' _ "$tokenize" -q --threads 1 --tokenizer bytes --output large text.txt
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
