#!/usr/bin/env bash
# The tokenize tool and what the trainer makes of its output, from outside: a table of (exit code, message, arguments).
#
# TRAIN_GPT and TOKENIZE name the programs to test; by default those of the CPU build.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
cd "$work" || exit 70

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

# ---- a tokenizer over another one: none of its files stays
mkdir imported && cp learned/tokenizer.json imported
echo '{"eos_token_id": 65}' >imported/generation_config.json && echo '{{ messages }}' >imported/chat_template.jinja
expect 0 "training and" "$tokenize" -q --tokenizer imported --output over text.txt
[ -e over/generation_config.json ] && [ -e over/chat_template.jinja ]
verdict $? "the files of an imported tokenizer: $(ls over)"
expect 0 "training and" "$tokenize" -q --tokenizer bytes --output over --overwrite text.txt
[ "$(ls over | xargs)" = "manifest.json tokenizer.bin tokenizer.json train_000000.bin" ]
verdict $? "and none of them behind another tokenizer: $(ls over)"

# ---- names are for people: the manifest says which shards are which
for name in web pretrain constrained train eval retrieval val; do
    expect 0 "3000 validation tokens" "$tokenize" -q --output named --overwrite --name $name --val-tokens 3000 text.txt
    train_tokens=$(sed -nE 's/^named: ([0-9]+) training and .*/\1/p' out)
    [ "$(ls named/*.bin | grep -c "named/${name}_")" -eq "$(ls named/*.bin | grep -vc tokenizer.bin)" ]
    verdict $? "--overwrite removes what was made under another --name: $(ls named)"
    expect 0 "step    1/1" "$train_gpt" --data ./named "${tiny[@]}"
    [ "$(sed -nE 's/^\| (train|val) tokens +\| ([0-9]+) in .*/\2/p' out | xargs)" = "$train_tokens 3000" ]
    verdict $? "--name $name: --data takes $(grep -E '^. (train|val) tokens' out), expected $train_tokens and 3000"
done
mv named/manifest.json aside.json
for given in "--data ./named" "--train-data ./named" "--train-data bytes/train_000000.bin --val-data ./named"; do
    cp named/val_train_000000.bin named/retrieval_000000.bin
    expect 65 "./named: retrieval_000000.bin can be training or validation data: neither word stands alone" "$train_gpt" $given "${tiny[@]}"
    rm named/retrieval_000000.bin
    expect 65 "can be training or validation data: its name has both words, and there is no manifest.json" "$train_gpt" $given "${tiny[@]}"
done
mv aside.json named/manifest.json

# ---- validation files of one's own
echo "validation only" >val.txt
expect 0 "17 validation tokens of 2 documents" "$tokenize" -q --tokenizer bytes --output own --val-files val.txt -- text.txt
expect 0 "validation only" "$tokenize" --decode own/val_000000.bin
expect 64 "--val-files together with" "$tokenize" -q --output own --val-files val.txt --val-tokens 5 -- text.txt
ln -s loop loop && mkdir looping && cp -P loop looping && cp text.txt looping
expect 74 "no file or folder loop: Too many levels of symbolic links" "$tokenize" -q --tokenizer bytes --output own loop
expect 0 "" "$tokenize" -q --tokenizer bytes --output from_folder --val-tokens 2000 looping
expect 74 "no file or folder missing.txt" "$tokenize" -q --output own --val-files missing.txt -- text.txt

# ---- folders: linked ones are followed, what is hidden and caches are passed over and told, but taken where they are named
mkdir -p tree/part1 store tree/.git tree/__pycache__ && echo one >tree/part1/a.txt && echo two >store/b.txt
ln -s ../store tree/part2 && ln -s .. tree/part1/up && echo x >tree/.git/HEAD && echo x >tree/__pycache__/c.pyc
expect 0 "of 2 documents" "$tokenize" -q --tokenizer bytes --output of_tree tree
check "what is passed over is told" grep -qF \
    'passed over in folders: 1 hidden (tree/.git); 1 of caches (tree/__pycache__); 1 read already by another link (tree/part1/up)' out
check "the linked folder's text" grep -q two <("$tokenize" --decode of_tree)
expect 0 "of 2 documents" "$tokenize" -q --tokenizer bytes --output of_tree --overwrite tree/.git tree/__pycache__/c.pyc
has "passed over" <out
[ $? -ne 0 ]
verdict $? "nothing is passed over where all is named: $(cat out)"
expect 0 "passed over in folders: " "$tokenize" -q --train 260 --output of_tree --overwrite tree
expect 64 "tree/none: there is no file in this folder but what is passed over: 1 hidden (tree/none/.x)" \
    bash -c "mkdir -p tree/none && echo x >tree/none/.x && \"$tokenize\" -q --output of_tree --overwrite tree/none"

# ---- compressed files: the same shards; one that is cut or damaged is refused
for i in $(seq 1 20000); do echo "{\"text\": \"line $i of $((i * 7919 % 1000)) documents\"}"; done >many.jsonl
same_shards() { diff <(cd "$1" && sha256sum ./*.bin) <(cd "$2" && sha256sum ./*.bin); }
expect 0 "of 20000 documents" "$tokenize" -q --tokenizer bytes --output plain many.jsonl
compressed() {   # SUFFIX COMPRESSOR...: by that program, the second half a part of its own
    local suffix=$1
    shift
    { head -n 10000 many.jsonl | "$@" && tail -n +10001 many.jsonl | "$@"; } >"many.jsonl.$suffix"
    "$tokenize" -q --tokenizer bytes --output "by_$suffix" "many.jsonl.$suffix" >"$work/log" 2>&1
    if [ $? -eq 64 ] && grep -q "this build has no z.*, which reads such files" "$work/log"; then
        echo "SKIPPED .$suffix: $(head -n 1 "$work/log")" && return
    fi
    check "$suffix: the same shards" same_shards plain "by_$suffix"
    local size
    size=$(stat -c %s "many.jsonl.$suffix")
    for part in 5 1000 $((size / 2 - 70)) $((size - 1)); do
        head -c $part "many.jsonl.$suffix" >"cut.jsonl.$suffix"
        expect 65 "bytes of text: the file ends within what" "$tokenize" -q --tokenizer bytes --output cut --overwrite "cut.jsonl.$suffix"
    done
    { head -c 2000 "many.jsonl.$suffix" && head -c 20 /dev/zero && tail -c +2021 "many.jsonl.$suffix"; } >"bad.jsonl.$suffix"
    expect 65 "bad.jsonl.$suffix: behind" "$tokenize" -q --tokenizer bytes --output cut --overwrite "bad.jsonl.$suffix"
    cp many.jsonl "plain.jsonl.$suffix"
    cp "many.jsonl.$suffix" misnamed.jsonl
    for input in "plain.jsonl.$suffix" misnamed.jsonl; do   # what lies in a file decides
        expect 0 "training" "$tokenize" -q --tokenizer bytes --output cut --overwrite "$input"
        check "the shards of $input" same_shards plain cut
    done
}
if command -v gzip >/dev/null; then compressed gz gzip; else echo "SKIPPED .gz: no gzip"; fi
if command -v zstd >/dev/null; then compressed zst zstd -q; else echo "SKIPPED .zst: no zstd"; fi

# ---- JSON lines and lists by name and content, and lines that are passed over: the same shards
cp many.jsonl many.json && cp many.jsonl MANY.JSONL && cp many.jsonl many.txt && cp many.jsonl part-0 && cp many.jsonl many.jl
head -n 1 many.jsonl >one.jsonl
{ echo '[' && sed '$!s/$/,/' many.jsonl && echo ']'; } >list.json
sed '7i {"text": null}' many.jsonl | sed '$a {"score": NaN, "text": "x"}' >mixed.jsonlines
for name in many.json MANY.JSONL many.txt part-0 many.jl list.json; do
    expect 0 "of 20000 documents" "$tokenize" -q --tokenizer bytes --output json --overwrite $name
    check "$name: the same shards" same_shards plain json
done
expect 0 "of 20000 documents" bash -c "\"$tokenize\" -q --tokenizer bytes --output json --overwrite - <many.jsonl"
expect 65 "standard input is empty" "$tokenize" -q --output nothing -
expect 65 'mixed.jsonlines: line 7, offset 216: the field "text" is null, expected a string' \
    "$tokenize" -q --tokenizer bytes --output json --overwrite mixed.jsonlines
expect 0 '  passed over 2 bad lines, the first: mixed.jsonlines: line 7, ' \
    "$tokenize" -q --tokenizer bytes --output json --overwrite --skip-bad-lines mixed.jsonlines
check "what is left without bad lines" same_shards plain json
{ echo '[1, 2]' && cat many.jsonl; } >bracket.jsonl
expect 65 'bracket.jsonl: line 1, offset 0: this line is not JSON: ' "$tokenize" -q --tokenizer bytes --output json --overwrite bracket.jsonl
expect 0 '  passed over 1 bad line: bracket.jsonl: line 1, ' \
    "$tokenize" -q --tokenizer bytes --output json --overwrite --skip-bad-lines bracket.jsonl
check "what is left without a line that begins with a bracket" same_shards plain json
expect 65 'no text to learn from: all 1 lines were passed over' \
    "$tokenize" -q --train 300 --output json --overwrite --skip-bad-lines --field none one.jsonl
expect 0 'passed over 2 bad lines, the first: ' "$tokenize" -q --train 300 --output json --overwrite --skip-bad-lines mixed.jsonlines
expect 65 'all 1 lines were passed over' "$tokenize" -q --output json --overwrite --skip-bad-lines --field none one.jsonl
expect 0 "of 1 documents" "$tokenize" -q --tokenizer bytes --output json --overwrite --format text many.json
if command -v gzip >/dev/null; then
    { gzip -c many.jsonl && head -c 10240 /dev/zero; } >MANY.JSON.GZ
    "$tokenize" -q --tokenizer bytes --output json --overwrite MANY.JSON.GZ >"$work/log" 2>&1
    if ! grep -q "this build has no z.*, which reads such files" "$work/log"; then
        check "MANY.JSON.GZ, padded by zeros: the same shards" same_shards plain json
    fi
fi

# ---- equal documents: the first is kept, whatever lies between them and in how many parts they are read
head -n 3 many.jsonl >three.jsonl
cat three.jsonl three.jsonl >six.jsonl
expect 0 "of 3 documents" "$tokenize" -q --tokenizer bytes --output three three.jsonl
expect 0 "of 3 documents" "$tokenize" -q --tokenizer bytes --output six --dedup six.jsonl
check "the first of equal documents" same_shards three six
expect 0 "of 6 documents" "$tokenize" -q --tokenizer bytes --output six --overwrite six.jsonl
head -c 3000000 many.jsonl >large.txt && cp large.txt again.txt && sed '$s/$/./' large.txt >other.txt
expect 0 "of 2 documents" "$tokenize" -q --tokenizer bytes --output deduped --dedup --threads 3 --format text large.txt other.txt again.txt
expect 0 "of 2 documents" "$tokenize" -q --tokenizer bytes --output two --format text large.txt other.txt
check "documents of several parts" same_shards deduped two

# ---- questions, compared byte for byte with a construction from the format's description
cat >hellaswag.jsonl <<'END'
{"ind": 4, "activity_label": "Baking", "ctx": "A w\u00f6man bakes. She", "endings": ["eats it.", "sells it.", "flies off.", "sings."], "label": 1}

{"ctx": "The dog", "endings": ["barks", "is \"fine\""], "label": "0"}
END
printf '%s\r\n' '"What is 1+1, really?",1,2,3,"4, or ""four""",B' 'Next,a,b,c,d,D' >mmlu.csv
expect 0 "hellaswag.bin: 2 questions" "$tokenize" --questions hellaswag --tokenizer bytes --output hellaswag.bin hellaswag.jsonl
expect 0 "made/mmlu.bin: 2 questions" "$tokenize" --questions mmlu --tokenizer bytes --output made/mmlu.bin mmlu.csv
"$tokenize" --questions hellaswag --question-ids apart --tokenizer bytes --output apart.bin hellaswag.jsonl >out
verdict $? "questions with texts apart: $(cat out)"
expect 64 "--question-ids requires --questions" "$tokenize" --question-ids apart --tokenizer bytes --output none hellaswag.jsonl
if command -v python3 >/dev/null; then
    python3 - <<'END'
import csv, json, struct, sys
def check(path, questions, way=1):
    body, longest = b"", 0
    for index, (context, completions, label) in enumerate(questions):
        texts = [context] + [" " + c for c in completions]
        words = [label, len(completions)]
        for t in texts:
            words += [len(t.encode())] + list(t.encode())
        size = 2 * (len(words) + 3)
        longest = max(longest, size)
        body += struct.pack(f"<{len(words) + 3}H", 65535, size, index, *words)
    content = open(path, "rb").read()
    made_with = struct.unpack_from("<Q", content, 16)[0]   # its hash of the tokenizer
    header = struct.pack("<4iQi", 20240522, 1, len(questions), longest, made_with, 1 + ("mmlu" in path))
    of_content = content[28:36]   # xxh3, which Python has not: the C++ tests compute it
    if content != header + of_content + struct.pack("<i", way) + bytes(1024 - 40) + body or made_with == 0 or of_content == bytes(8):
        sys.exit(path + " differs")
lines = [json.loads(line) for line in open("hellaswag.jsonl") if line.strip()]
check("hellaswag.bin", [(q["ctx"], q["endings"], int(q["label"])) for q in lines])
check("apart.bin", [(q["ctx"], q["endings"], int(q["label"])) for q in lines], way=0)   # byte for byte as older programs
rows = list(csv.reader(open("mmlu.csv", newline="")))
check("made/mmlu.bin", [(f"Question: {r[0]}\n\nAnswer:", r[1:5], "ABCD".index(r[5])) for r in rows])
END
    verdict $? "question files equal an independent construction"
else
    echo "SKIPPED comparison of question files: no python3"
fi
set -f
expect 0 "HellaSwag: " $(train bytes bytes) --seq-len 64 --hellaswag 1 --hellaswag-data hellaswag.bin
set +f

# ---- truncated, damaged and wrong-version input of each kind: exit code 65, the file and the place
bad() {   # FILE MESSAGE COMMAND...
    local file=$1 message=$2
    shift 2
    expect 65 "$file: $message" "$@"
}
encode=("$tokenize" -q --output out1 text.txt --tokenizer)
printf '%s\n' '{"text": "fine"}' '{"text": "cut' >bad.jsonl
bad bad.jsonl "line 2, offset 30: this line is not JSON" "$tokenize" -q --output out1 bad.jsonl
printf '%s\n' '{"txt": "fine"}' >bad.jsonl
bad bad.jsonl "line 1, offset 0: this line has no string field" "$tokenize" -q --output out1 bad.jsonl
printf 'caf\xc3\xa9 \xff' >bad.txt
bad bad.txt "offset 0: byte 6 of the text is not UTF-8" "$tokenize" -q --output out1 --invalid-utf8 refuse bad.txt
echo "no version" >vocab.bpe
bad vocab.bpe "offset 0: the first line" "${encode[@]}" vocab.bpe
printf '#version: 0.2\na b\nab\n' >vocab.bpe
bad vocab.bpe "offset 18: 'ab' is not a merge" "${encode[@]}" vocab.bpe
printf '#version: 0.2\na b\nab xyz\n' >vocab.bpe
bad vocab.bpe "offset 18: a merge of a token" "${encode[@]}" vocab.bpe
printf '#version: 0.2\na b\n' >vocab.bpe
echo '{"a": 1, ' >encoder.json
bad encoder.json "offset 11: not JSON" "${encode[@]}" vocab.bpe
printf 'IQ== 0\nIg== one\n' >ranks.tiktoken
bad ranks.tiktoken "offset 7: 'Ig== one'" "${encode[@]}" ranks.tiktoken
printf 'IQ== 0\nIg== 5\n' >ranks.tiktoken
bad ranks.tiktoken "offset 14: 2 ranks, the highest 5" "${encode[@]}" ranks.tiktoken
head -c 500 learned/tokenizer.json >cut.json
bad cut.json "offset 501: not JSON" "${encode[@]}" cut.json
sed 's/"type": "BPE"/"type": "Unigram"/' learned/tokenizer.json >wrong.json
# damaged content of JSON, by sed: FILE EDIT TEXT MESSAGE COMMAND...: the place is where TEXT begins in the edited file
edited() {
    local file=$1 edit=$2 place message=$4
    sed "$edit" "$file" >edited.json
    place=$(grep -obF -m 1 -- "$3" edited.json | head -n 1 | cut -d : -f 1)
    shift 4
    bad edited.json "offset ${place:-not found} $message" "$@"
}
edited learned/tokenizer.json 's/"type": "BPE"/"type": "Unigram"/' '"Unigram"' "(/model/type): only BPE is supported, not Unigram" "${encode[@]}" edited.json
edited learned/tokenizer.json 's/"#": 2,/"#": "two",/' '"two"' "(/model/vocab/#): not a token id" "${encode[@]}" edited.json
edited learned/tokenizer.json 's/"#": 2,/"#": 1 ,/' '1 ,' "(/model/vocab/#): id 1 is given twice" "${encode[@]}" edited.json
edited learned/tokenizer.json 's/"model": {/"modell": {/' '{' "(): not as in a tokenizer.json" "${encode[@]}" edited.json
edited learned/tokenizer.json 's/"normalizer": null/"normalizer": {"type": "NFKC"}/' '{"type": "NFKC"}' "(/normalizer): normalizer NFKC is not supported" "${encode[@]}" edited.json
edited learned/tokenizer.json 's/"byte_fallback": false/"byte_fallback": true /' 'true ,' "(/model/byte_fallback): byte_fallback beside a ByteLevel step is not supported" "${encode[@]}" edited.json
printf '\n\016\n\005<unk>' >tokenizer.model
bad tokenizer.model "offset 0: a SentencePiece model, which is not supported" "${encode[@]}" tokenizer.model
edited learned/tokenizer.json 's/"id": 299/"id": -299/' '-299' "(/added_tokens/0/id): not a token id" "${encode[@]}" edited.json
edited learned/tokenizer.json 's/"type": "ByteLevel"/"type": "Whitespace"/;s/"pre_tokenizer": {/& /' '{ ' "(/pre_tokenizer): a step of type Whitespace" "${encode[@]}" edited.json
printf '#version: 0.2\n' >vocab.bpe
echo '{"!": 0, "\"": 7}' >encoder.json
bad encoder.json "offset 15: token '\"' does not have the id 1" "${encode[@]}" vocab.bpe
echo '{"#": 2}' >encoder.json
bad encoder.json "offset 0: token '!' does not have the id 0" "${encode[@]}" vocab.bpe
rm encoder.json
printf 'IQ== 0\nIg== 1\n' >ranks.tiktoken
bad ranks.tiktoken "offset 14: the file ends and has no token for byte 0" "${encode[@]}" ranks.tiktoken
head -c 1500 learned/tokenizer.bin >cut.bin
bad cut.bin "offset 1500: the file ends inside token" "$tokenize" --decode learned/val_000000.bin --tokenizer cut.bin
{ head -c 4 learned/tokenizer.bin && printf '\3' && tail -c +6 learned/tokenizer.bin; } >version.bin
bad version.bin "offset 4: version 3, expected 2" "$tokenize" --decode learned/val_000000.bin --tokenizer version.bin
cp -r bytes broken && head -c 2000 bytes/train_000000.bin >broken/train_000000.bin
bad broken/train_000000.bin "byte 8: token count" "$tokenize" --verify broken
cp bytes/train_000000.bin broken && printf '\7' | dd of=broken/train_000000.bin bs=1 seek=4 conv=notrunc 2>/dev/null
bad broken/train_000000.bin "byte 4: version 7, expected 1" "$tokenize" --verify broken
cp bytes/train_000000.bin broken && head -c 100 bytes/manifest.json >broken/manifest.json
bad broken/manifest.json "byte 101: not JSON" "$tokenize" --verify broken
manifest() {   # EDIT TEXT MESSAGE: the place is where TEXT begins in the edited manifest
    sed "$1" bytes/manifest.json >broken/manifest.json
    bad broken/manifest.json "byte $(grep -obF -m 1 -- "$2" broken/manifest.json | head -n 1 | cut -d : -f 1): $3" "$tokenize" --verify broken
}
manifest 's/"version": 1/"version": 23/' 23 'not a manifest of token shards: found format "token shards", version 23'
manifest 's/"token shards"/"tokens"/' '"tokens"' 'not a manifest of token shards: found format "tokens"'
manifest 's/"vocab_size": 257/"vocab_size": "257"/' '"257"' 'not a manifest of token shards: found "257"'
printf '%s\n' '{"ctx": "a", "endings": ["b", "c"], "label": 2}' >bad.jsonl
bad bad.jsonl "offset 0: the right answer is number 2 of 2" "$tokenize" --questions hellaswag --output q.bin bad.jsonl
echo 'q,1,2,3,4' >bad.csv
bad bad.csv "offset 0: a record of 5 fields" "$tokenize" --questions mmlu --output q.bin bad.csv
printf '%s\n' '{"ctx": "a", "endings": ["b", "c"], "label": 0}' '{"ctx": "a", "endings": 3, "label": 0}' >bad.jsonl
bad bad.jsonl "offset 48: this line is no such question" "$tokenize" --questions hellaswag --output q.bin bad.jsonl
printf '%s\n' '{"ctx": "a", "endings": ["b", "c"], "label": 0}' '{"ctx": "a", ' >bad.jsonl
bad bad.jsonl "offset 62: not JSON" "$tokenize" --questions hellaswag --output q.bin bad.jsonl
head -c 1100 hellaswag.bin >cut.bin
set -f
bad cut.bin "byte 28: damaged: the content's hash is" $(train bytes bytes) --seq-len 64 --hellaswag 1 --hellaswag-data cut.bin
set +f

# ---- Git LFS pointers in the place of any file that is read
mkdir pointers && cp text.txt pointers
for name in a.txt a.json b.jsonl c.txt.gz d.bin tokenizer.json; do
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n' >pointers/$name
done
for name in a.txt a.json b.jsonl c.txt.gz; do
    bad pointers/$name "this is a Git LFS pointer" "$tokenize" -q --output out1 pointers/$name
done
bad pointers/a.json "this is a Git LFS pointer" "$tokenize" -q --output out1 pointers
bad pointers/a.txt "this is a Git LFS pointer" "$tokenize" -q --format jsonl --output out1 pointers/a.txt
expect 0 "of 1 documents" "$tokenize" -q --format text --output of_pointer pointers/a.txt
bad pointers/tokenizer.json "this is a Git LFS pointer" "${encode[@]}" pointers/tokenizer.json
bad pointers/b.jsonl "this is a Git LFS pointer" "$tokenize" -q --questions hellaswag --output q.bin pointers/b.jsonl
cp bytes/train_000000.bin broken && cp pointers/d.bin broken/train_000000.bin && cp bytes/manifest.json broken
bad broken/train_000000.bin "this is a Git LFS pointer" "$tokenize" --verify broken
mkdir model && cp pointers/d.bin model/model.safetensors && cp pointers/d.bin model.bin
echo '{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 257}' >model/config.json
set -f
bad model/model.safetensors "this is a Git LFS pointer" $(train bytes bytes) --layers 0 --heads 0 --channels 0 --model model
bad model.bin "this is a Git LFS pointer" $(train bytes bytes) --layers 0 --heads 0 --channels 0 --model model.bin
set +f

# ---- memory: 200 MB from a pipe, in documents and as one, within 150 MB of memory (ids alone would be 800)
limited() { (ulimit -d 150000 && "$tokenize" "$@"); }
for separator in '\n\n' ''; do
    yes $'A document, about nothing in particular, with a few lines of text\nand numbers such as 1234.\n' |
        head -c 200000000 | limited -q --threads 2 --tokenizer learned --separator "$separator" --output large - >out 2>&1
    grep -q "training and 0 validation tokens" out
    verdict $? "200 MB with a limit of 150 MB on memory, separator '$separator': $(cat out)"
    rm -rf large
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
