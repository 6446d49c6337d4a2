#!/usr/bin/env bash
# The scripts in data/: without a network they say so and exit with 69; what was downloaded before, or brought by hand,
# is prepared without one; a file of another hash is refused. Runs in a copy, on small inputs made here.
source "$(dirname "$0")/common.sh"
needs "$tokenize"
mkdir "$work/data" "$work/bin" && cp data/*.sh data/*.py "$work/data/" && cd "$work" || exit 70

# a machine without a network, whatever this one has: curl fails as it does where no name resolves
printf '#!/bin/sh\nexit 6\n' >bin/curl && chmod +x bin/curl
export PATH=$work/bin:$PATH TOKENIZE=$tokenize VOCABULARY=bytes

for script in tinyshakespeare tinystories hellaswag mmlu arc piqa lambada; do
    expect 69 "$script.sh: no network" data/$script.sh
    expect 0 "data/$script" data/$script.sh --help
done
(unset VOCABULARY && mkdir -p data/hellaswag/raw && echo x >data/hellaswag/raw/hellaswag_val.jsonl &&
    expect 69 "no network: openaipublic" data/hellaswag.sh && echo "$passed $failed" >counts)
read -r passed failed <counts
rm -r data/hellaswag
(TOKENIZE=./none && export TOKENIZE && expect 69 "run \`make tools\` first" data/mmlu.sh && echo "$passed $failed" >counts)
read -r passed failed <counts

# ---- what lies there already is used
mkdir -p data/{tinyshakespeare,tinystories,hellaswag,mmlu,arc,piqa,lambada}/raw
for i in $(seq 1 9000); do printf 'Line %s of a play.\n\n' "$i"; done >data/tinyshakespeare/raw/tiny_shakespeare.txt
expect 65 "expected 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed" data/tinyshakespeare.sh
DATA_UNCHECKED=1 expect 0 "32768 validation tokens of 9000 documents" data/tinyshakespeare.sh -q
expect 0 "good: 2 shards" "$tokenize" --verify data/tinyshakespeare
[ -e data/tinyshakespeare/tiny_shakespeare_val_000000.bin ]
verdict $? "llm.c's name of the shards"

printf 'Once.\n<|endoftext|>\nTwice.\n' >data/tinystories/raw/TinyStories-train.txt
printf 'Never.\n' >data/tinystories/raw/TinyStories-valid.txt
expect 0 "13 training and 7 validation tokens of 3 documents" data/tinystories.sh -q
echo more >>data/tinystories/raw/TinyStories-train.txt
expect 65 "remove it and run this again" data/tinystories.sh -q

echo '{"ctx": "A", "endings": ["b", "c"], "label": 1}' >data/hellaswag/raw/hellaswag_val.jsonl
expect 0 "hellaswag_val.bin: 1 questions" data/hellaswag.sh
mkdir -p mmlu/data/test && echo 'q,1,2,3,4,A' | tee mmlu/data/test/one.csv >mmlu/data/test/two.csv
tar -C mmlu -cf data/mmlu/raw/mmlu.tar data/test
expect 0 "mmlu_test.bin: 2 questions" data/mmlu.sh
printf '%s\n' '{"goal": "g {1}", "sol1": "a}", "sol2": "b"}' '{"goal": "h", "sol1": "c", "sol2": "d"}' >data/piqa/raw/valid.jsonl
printf '1\n0\n' >data/piqa/raw/valid-labels.lst
expect 0 "piqa_val.bin: 2 questions" data/piqa.sh
[ "$(cat data/piqa/raw/labelled.jsonl)" = '{"goal": "g {1}", "sol1": "a}", "sol2": "b", "label": 1}
{"goal": "h", "sol1": "c", "sol2": "d", "label": 0}' ]
verdict $? "each answer is its question's: $(cat data/piqa/raw/labelled.jsonl)"
printf '1\n' >data/piqa/raw/valid-labels.lst
DATA_UNCHECKED=1 expect 65 "another number of lines" data/piqa.sh
echo '{"text": "he said hello to Anna"}' >data/lambada/raw/lambada_test.jsonl
expect 0 "lambada_test.bin: 1 questions" data/lambada.sh
if command -v unzip >/dev/null && command -v python3 >/dev/null; then
    python3 -c "
import json, zipfile
with zipfile.ZipFile('data/arc/raw/arc.zip', 'w') as z:
    for name, n in (('Easy', 2), ('Challenge', 1)):
        line = json.dumps({'question': {'stem': 'q', 'choices': [{'text': t, 'label': l} for t, l in zip('wxyz', 'ABCD')]}, 'answerKey': 'C'})
        z.writestr(f'ARC-V1-Feb2018-2/ARC-{name}/ARC-{name}-Test.jsonl', (line + '\n') * n)"
    expect 0 "arc_easy_test.bin: 2 questions" data/arc.sh
    grep -q "arc_challenge_test.bin: 1 questions" out
    verdict $? "the challenge too"
else
    echo "SKIPPED data/arc.sh on a file: no unzip or python3 here"
fi

# ---- one script at a time writes a folder, and downloads a file
for script in tinyshakespeare tinystories hellaswag mmlu arc piqa lambada; do
    expect 64 "$script.sh: data/$script: another run is writing there" flock data/$script data/$script.sh
done
mkdir waits && cat >waits/curl <<'END' && chmod +x waits/curl
#!/bin/sh
echo called >>calls
until [ -e go ]; do sleep 0.02; done
echo text >out.part
END
fetch_both() {
    PATH=$work/waits:$PATH bash -c '. data/common.sh; cd fetched; fetch http://x/out out & fetch http://x/out out & wait' >fetched.log 2>&1
}
mkdir fetched && fetch_both & pid=$!
eventually $pid [ -s fetched/calls ]
touch fetched/go
wait $pid
[ "$(cat fetched/calls)" = called ] && [ "$(cat fetched/out)" = text ]
verdict $? "two scripts download the same file once: $(wc -l <fetched/calls) calls, $(cat fetched.log)"

# ---- Parquet, where there is pyarrow
python=${PYTHON:-python3}
if "$python" -c 'import pyarrow.parquet' 2>/dev/null; then
    export PYTHON=$python
    raw=data/edu_fineweb10B/raw
    mkdir -p $raw
    "$python" -c "
import pyarrow, pyarrow.parquet
text = ['caf\u00e9 \"%d\"\n' % i for i in range(2500)] + [None]
pyarrow.parquet.write_table(pyarrow.table({'id': range(2501), 'text': text}), '$raw/000.parquet')"
    echo "$(sha256sum <$raw/000.parquet | cut -d' ' -f1) sample/10BT/000.parquet" >$raw/files.txt
    expect 0 "2501 documents" data/fineweb.sh --edu -q --val-tokens 5000
    "$tokenize" --decode data/edu_fineweb10B/edu_fineweb_val_000000.bin >decoded
    sed -n 2p decoded | has -F 'café "1"'
    verdict $? "text of a Parquet file"
    head -c 3000 $raw/000.parquet >cut && mv cut $raw/000.parquet
    expect 65 "has the SHA-256" data/fineweb.sh --edu -q
    expect 1 "not a readable Parquet file" "$python" data/parquet_to_jsonl.py $raw/000.parquet

    # columns of text in each of their types, one file each; what is no text is named
    "$python" -c "
import pyarrow as pa, pyarrow.parquet as pq
text = ['caf\u00e9', 'two\n', None] * 700
for name, type in (('string', pa.string()), ('large', pa.large_string()), ('bytes', pa.binary()), ('large_bytes', pa.large_binary()),
                   ('dictionary', pa.dictionary(pa.int32(), pa.string())), ('dictionary_of_bytes', pa.dictionary(pa.int8(), pa.binary()))):
    values = [t and t.encode() for t in text] if 'bytes' in name else text
    pq.write_table(pa.table({'text': pa.array(values, type)}), name + '.parquet')
pq.write_table(pa.table({'text': pa.array([b'\xff', b'\xc3'], pa.binary())}), 'not_utf8.parquet')
pq.write_table(pa.table({'text': pa.array([['a'], ['b', 'c']]), 'number': [7, 8], 'parts': [{'text': 'a'}] * 2, 'nulls': pa.nulls(2)}), 'others.parquet')"
    "$python" data/parquet_to_jsonl.py --plain string.parquet >as_string
    for type in large bytes large_bytes dictionary dictionary_of_bytes; do
        "$python" data/parquet_to_jsonl.py --plain $type.parquet 2>&1 | cmp - as_string >differs 2>&1
        verdict $? "a column of $type has the text of one of strings: $(head -n 1 differs)"
    done
    [ "$(sed -n 1p as_string)" = '{"text": "café"}' ] && [ "$(sed -n 3p as_string)" = '{"text": ""}' ] && [ "$(wc -l <as_string)" = 2100 ]
    verdict $? "text and nulls: $(head -n 3 as_string)"
    [ "$("$python" data/parquet_to_jsonl.py --plain --field nulls others.parquet | sort -u)" = '{"nulls": ""}' ]
    verdict $? "a column of nothing but nulls"
    expect 1 "expected one column txt, found text, number, parts, nulls" "$python" data/parquet_to_jsonl.py --field txt others.parquet
    expect 1 "others.parquet: column text is of the type list<" "$python" data/parquet_to_jsonl.py others.parquet
    expect 1 "column number is of the type int64, expected text" "$python" data/parquet_to_jsonl.py --field number others.parquet
    expect 1 "column parts is of the type struct<" "$python" data/parquet_to_jsonl.py --field parts others.parquet
    "$python" data/parquet_to_jsonl.py not_utf8.parquet | "$tokenize" -q --output not_utf8 - >/dev/null
    "$tokenize" --decode not_utf8/train_000000.bin >decoded
    [ "$(od -An -c decoded | tr -d ' \n')" = '<|endoftext|>377<|endoftext|>303' ]
    verdict $? "bytes that are not UTF-8 stay: $(od -An -c decoded)"

    # a converter that fails leaves no corpus; one whose reader wants no more has not failed
    for second in $raw/000.parquet others.parquet; do
        expect 65 "this stream is not whole: it ends without its last line" \
            bash -c '"$1" data/parquet_to_jsonl.py string.parquet "$2" | "$3" -q --output broken -' _ "$python" $second "$tokenize"
        [ ! -e broken/manifest.json ]
        verdict $? "no manifest behind a converter that failed on $second"
    done
    expect 1 "cannot write to standard output: " bash -c '"$1" data/parquet_to_jsonl.py string.parquet >/dev/full' _ "$python"
    expect 0 "train_gpt_stream" bash -c 'set -o pipefail
        "$1" data/parquet_to_jsonl.py string.parquet{,,,}{,,,} | head -n 1' _ "$python"
    expect 69 "no network" data/fineweb.sh
else
    expect 69 "pip install pyarrow" data/fineweb.sh
    echo "SKIPPED Parquet: $python has no pyarrow"
fi

# a corpus from this machine's files: it replaces what it has made itself, and nothing else
mkdir headers own && for i in $(seq 100); do printf '#define N%d 1\n\n' "$i"; done >headers/one.h && echo mine >own/files.txt
expect 64 "holds files that this script has not made" data/local.sh --output own --folder headers --vocab bytes
[ "$(cat own/files.txt)" = mine ] && [ "$(ls own)" = files.txt ]
verdict $? "somebody's folder is as it was: $(ls own)"
for _ in 1 2; do
    expect 0 "of 100 documents" data/local.sh --output made --folder headers --vocab bytes
done
expect 64 "local.sh: made: another run is writing there" flock made data/local.sh --output made --folder headers --vocab bytes
expect 0 "good: 2 shards" "$tokenize" --verify made

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
