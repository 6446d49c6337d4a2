#!/usr/bin/env bash
# What an unlucky operator and a new user meet: data, options, environments and limits that cannot be meant. Each is refused
# by name or warned of, with the right exit code, and nothing hangs.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
loss_curve=$(realpath -m "build/$device$variant/loss_curve") root=$PWD
cd "$work" || exit 70

seq 1 3000 >numbers.txt
"$tokenize" --train 300 --quiet --output words numbers.txt >/dev/null &&
    "$tokenize" --train 290 --quiet --output others numbers.txt >/dev/null &&
    "$tokenize" --tokenizer words --quiet --output data --val-tokens 1500 --shard-tokens 1000 numbers.txt >/dev/null || exit 70
tiny=(--layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --max-steps 2 --val-max-batches 2 --sample-every 0)
of() { run=("$train_gpt" --train-data "$1/*train*.bin" --val-data "$1/*val*.bin" "${tiny[@]}"); }
of data

# ---- a corpus whose tokenize was killed, by name, pattern and folder; another call finishes it
"$tokenize" --tokenizer words --quiet --output killed --shard-tokens 1000 --separator '\n' --threads 1 - < <(yes 123) & pid=$!
until [ -e killed/train_000000.bin ]; do sleep 0.05; done
kill -9 $pid; wait $pid 2>/dev/null
for split in train val; do cp data/${split}_000000.bin "killed/${split}_000009.bin"; done
of killed
expect 65 "killed/tokenize.unfinished: the shards of --train-data beside it are not all there" "${run[@]}"
expect 65 "killed/tokenize.unfinished" "$train_gpt" check --data killed/ "${tiny[@]}"
expect 0 "training" "$tokenize" --tokenizer words --quiet --output killed --val-tokens 1500 numbers.txt
expect 0 "step    2/2" "${run[@]}"
of data

# ---- data that are no files, before anything else is said of model or tokenizer
expect 74 "--train-data /dev/null: is a device" "${run[@]}" --train-data /dev/null
mkfifo shard.bin && expect 74 "--val-data shard.bin: is a pipe" "${run[@]}" --val-data shard.bin

# ---- input that is no text, by its content; and what is asked for
head -c 5000 "$train_gpt" >program.txt
printf '\x89PNG\r\n\x1a\nIHDR' >picture.txt
gzip -nc numbers.txt | gzip -nc >twice.gz
printf '\x28\xb5\x2f\xfdtext' >zstd.txt
printf 'PAR1text' >some.parquet
: >nothing.jsonl
iconv -t UTF-16 numbers.txt >wide.txt
for input in program.txt:"a program" picture.txt:"a picture" twice.gz:"compressed twice, inside by gzip" some.parquet:Parquet \
    wide.txt:"UTF-16" data/train_000000.bin:"bytes that are 0"; do
    expect 65 "${input%%:*}: this is not text: " "$tokenize" --quiet --output none "${input%%:*}"
    check "it says what it is" grep -qF -- "${input#*:}" out
done
expect 65 "-: this is not text: compressed twice, inside by gzip" bash -c '"$0" --quiet --output none - <twice.gz' "$tokenize"
expect 65 "zstd.txt: " "$tokenize" --quiet --output none zstd.txt
expect 65 "no training tokens: nothing.jsonl: empty" "$tokenize" --quiet --output none nothing.jsonl
expect 65 "picture.txt: this is not text" "$tokenize" --quiet --train 300 --output none picture.txt
expect 0 "13 training" "$tokenize" --quiet --output forced --format text picture.txt
printf 'caf\xff \x01\x02 text' >latin.txt
expect 0 "13 training" "$tokenize" --quiet --output latin latin.txt

# ---- tokenizers beside data: both files are the manifest's
damaged() { rm -rf damaged && cp -r data damaged && of damaged; }
damaged && echo garbage >damaged/tokenizer.json
expect 65 "damaged/tokenizer.json: offset 1: not JSON" "${run[@]}"
expect 65 "damaged/tokenizer.json" "$tokenize" --verify damaged
for file in json bin; do
    damaged && cp others/tokenizer.$file damaged
    expect 65 "damaged/tokenizer.$file: this tokenizer has the hash" "${run[@]}"
    expect 65 "" "$tokenize" --verify damaged
    damaged && : >damaged/tokenizer.$file
    expect 65 "damaged/tokenizer.$file: offset " "${run[@]}"
    expect 65 "damaged/tokenizer.$file: offset " "$tokenize" --verify damaged
done
of data

# ---- options: given twice, that exclude each other, of other programs, that are not UTF-8
expect 0 "warning: --lr 0.1: ignored, for 0.2 follows" "${run[@]}" --lr 0.1 --lr 0.2
expect 0 "warning: --train-data data/*train*.bin: ignored" "${run[@]}" --train-data data/train_000000.bin
"${run[@]}" -l 0.1 --lr 0.1 2>&1 | has ignored
[ $? -eq 1 ]; verdict $? "the same value twice needs no warning"
expect 64 "--model d12 together with --layers" "${run[@]}" --model d12
expect 64 "Did you mean --micro-batch?" "${run[@]}" --batch-size 4
for theirs in --block_size:--seq-len --learning-rate:--lr --n_layer:--layers --micro-batch-size:--micro-batch \
    --tensor-model-parallel-size:--tp --max_iters:--max-steps; do
    expect 64 "Did you mean ${theirs#*:}?" "${run[@]}" "${theirs%%:*}" 4
done
expect 64 "Did you mean --model runs/x?" "$train_gpt" generate runs/x
expect 64 "Did you mean --model data?" "$train_gpt" export data
expect 64 '--output-dir fol\xffder: not UTF-8' "${run[@]}" --output-dir $'fol\xffder'
cp -r data $'da\xffta'
expect 64 '--train-data da\xffta/train' "${run[@]}" --train-data $'da\xffta/train*'
expect 0 "step    2/2" "${run[@]}" --train-data 'da?ta/train*' -o wild
expect 0 "training" "$tokenize" --quiet --tokenizer $'da\xffta' --output named numbers.txt

# ---- files of options: empty, cut, zeros, lists, lines that are there twice
config() { printf "$1" >options.cfg; }
for content in '' '# nothing\n' '\n\n' '\0\0\0\0' '[section]\n'; do
    config "$content"
    expect 64 "--config options.cfg: " "${run[@]}" --config options.cfg
done
"$train_gpt" --print-config >whole.cfg
expect 0 "step    2/2" "${run[@]}" --config whole.cfg
for bytes in 100 1000 $(($(stat -c %s whole.cfg) - 1)) $(($(stat -c %s whole.cfg) - 30)); do
    head -c "$bytes" whole.cfg >options.cfg
    expect 64 "--config options.cfg: " "${run[@]}" --config options.cfg
done
head -n 20 whole.cfg >options.cfg
expect 64 "--config options.cfg: the end of this file is missing" "${run[@]}" --config options.cfg
config 'lr=0.1\nlr=0.2\n'
expect 64 "--config options.cfg: line 2: --lr: this option has a line before" "${run[@]}" --config options.cfg
for name in lr model zero recompute resume norm seed; do
    config "$name = []\n"
    expect 64 "--config options.cfg: line 1: --$name" "${run[@]}" --config options.cfg
    config "$name = [1, 2]\n"
    expect 64 "--config options.cfg: line 1: --$name: 2 values, expected one" "${run[@]}" --config options.cfg
done
config 'output-dir="\xff"\n'
expect 64 'options.cfg: line 1: --output-dir \xff: not UTF-8' "${run[@]}" --config options.cfg

# ---- nothing to resume, and no model named: a typing error in the folder
expect 64 "--resume: typo/options.json: No such file or directory, and no model is named" "$train_gpt" --resume 1 --output-dir typo
expect 74 "numbers.txt/options.json: Not a directory" "$train_gpt" --resume 1 --output-dir numbers.txt
check "nothing was made" [ ! -e typo ]
expect 0 "nothing to resume in begun: starting afresh" "${run[@]}" --resume 1 -o begun --export-llmc model.bin
mv begun/options.json aside.json
expect 64 "begun/options.json: No such file or directory" "$train_gpt" --resume 1 --output-dir begun
expect 64 "begun/options.json: No such file or directory, and no data are named" "$train_gpt" --resume 1 --output-dir begun "${tiny[@]}"
ln -s looped looped   # no process can look into it, root's neither
expect 74 "looped/options.json: Too many levels of symbolic links" "$train_gpt" --resume 1 --output-dir looped "${tiny[@]}"
mv aside.json begun/options.json
expect 0 "resuming from begun/step_00000002" "$train_gpt" --resume 1 --output-dir begun

# ---- a run folder that cannot be looked into is what is named, not data that would be trained on by default
if [ "$(id -u)" -ne 0 ]; then program=(); else program=(setpriv --reuid=65534 --regid=65534 --clear-groups); fi
mkdir -m 777 open && chmod 711 . && cp -r begun closed && chmod 000 closed
[ "$(id -u)" -ne 0 ] || chown 65534 closed
if "${program[@]}" "$train_gpt" --version >/dev/null 2>&1; then
    expect 74 "closed/options.json: Permission denied" "$train_gpt" --resume 1 --output-dir closed
    expect 74 "closed/options.json: Permission denied" "$train_gpt" --resume 1 --output-dir closed "${tiny[@]}"
    expect 74 "closed/options.json: Permission denied" "$train_gpt" check --resume 1 --output-dir closed
    expect 74 "closed: open failed: Permission denied" "$train_gpt" generate --model closed --prompt 1
    expect 74 "closed/metrics.jsonl: open failed: Permission denied" "$loss_curve" closed -o open/closed.svg
else
    echo "SKIPPED run folders without permissions: another user cannot start $train_gpt"
fi
program=() && chmod 755 closed

# ---- weights that are not finite: named with the tensor
cp model.bin nan.bin
printf '\xff\x7f\xff\x7f' | dd of=nan.bin bs=1 seek=1024 conv=notrunc 2>/dev/null
for verb in "evaluate --val-data data/val*" "generate --tokenizer data --prompt 1" "export --tokenizer data --output exported"; do
    set -f; expect 65 "nan.bin in bf16: wte.weight: element 0 is nan" "$train_gpt" $verb --model nan.bin; set +f
done
check "nothing was exported" [ ! -e exported ]

# ---- more samples in a step than there are
expect 0 "warning: a step takes 400 samples, --train-data has 275: they are repeated" "${run[@]}" -b 400 -x 1 --val-every 0

# ---- questions: of another tokenizer of the same size, too long, whose they are
seq 3001 6000 >numbers2.txt
"$tokenize" --train 300 --quiet --output same-size numbers2.txt >/dev/null
echo '{"ctx": "1", "endings": ["2", "3"], "label": 0}' >q.jsonl
echo '{"question": "1", "choices": ["2", "3"], "answer": 0}' >m.jsonl
for of in words same-size; do
    "$tokenize" --questions hellaswag --tokenizer $of --output $of.bin q.jsonl >/dev/null
done
"$tokenize" --questions mmlu --tokenizer words --output knowledge.bin m.jsonl >/dev/null
ask() { run+=(--val-every 2 --hellaswag 1 --hellaswag-data "$1"); }
of data && ask words.bin
expect 0 "HellaSwag: " "${run[@]}"
expect 0 "HellaSwag: " "$train_gpt" evaluate --model begun --hellaswag 1 --hellaswag-data words.bin
# the model's tokenizer begins each text with a token, the file was made before it did
"$train_gpt" export --model begun --output begins >/dev/null
id=$(grep -B1 '"content": "<|endoftext|>"' begins/tokenizer.json | grep -o '"id": [0-9]*' | grep -o '[0-9]*')
front='{"SpecialToken": {"id": "e"}}, {"Sequence": {"id": "A"}}'
post='{"type": "TemplateProcessing", "single": ['$front'], "special_tokens": {"e": {"ids": ['$id']}}}'
sed -i "s/\"post_processor\": null/\"post_processor\": $post/" begins/tokenizer.json
expect 0 "warning: words.bin: no question begins with <|endoftext|>" "$train_gpt" evaluate --model begins --hellaswag 1 --hellaswag-data words.bin
expect 0 "begins.bin: 1 questions, each after <|endoftext|>, tokenizer" "$tokenize" --questions hellaswag --tokenizer begins --output begins.bin q.jsonl
expect 0 "HellaSwag: " "$train_gpt" evaluate --model begins --hellaswag 1 --hellaswag-data begins.bin
check "without a warning" [ "$(grep -c 'no question begins' out)" -eq 0 ]
of data && ask same-size.bin
expect 65 "same-size.bin: byte 16: made with a tokenizer of hash" "${run[@]}"
expect 65 "same-size.bin: byte 16: made with a tokenizer of hash" "$train_gpt" evaluate --model begun --hellaswag 1 --hellaswag-data same-size.bin
of data && ask knowledge.bin
expect 0 "MMLU: " "${run[@]}"
expect 64 "1 of 1 questions are longer than --seq-len 4" "$train_gpt" evaluate --strict 1 --model begun --seq-len 4 --val-data 'data/val*' --hellaswag 1 --hellaswag-data knowledge.bin
check "before anything is measured" [ "$(grep -c 'val loss' out)" -eq 0 ]
of data

# ---- environments
for what in WORLD_SIZE=4 WORLD_SIZE=0 RANK=1 RANK=x WORLD_SIZE=-1 LOCAL_RANK=1x OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0; do
    expect 64 "the environment has $what" env "$what" "${run[@]}"
done
expect 64 "the environment has RANK=0 WORLD" env "RANK=0 WORLD" "${run[@]}"
for count in many 1025 1000000 99999999999999999999 -1 0 2x ' 2' 1.5; do
    expect 64 "the environment has TRAIN_GPT_THREADS=$count" env "TRAIN_GPT_THREADS=$count" "${run[@]}"
done
expect 64 "the environment has TRAIN_GPT_THREADS=-1" env TRAIN_GPT_THREADS=-1 "$train_gpt" plan
expect 0 "warning: TRAIN_GPT_CHECKS=all: without a GPU" env TRAIN_GPT_CHECKS=all "${run[@]}"
for option in --aux-loss --router-scale; do
    expect 64 "--router-scale, --aux-loss or --router-z-loss without --experts" "${run[@]}" $option 0.01
done
for scale in 0 1e-50; do
    expect 64 "not a model: --router-scale $scale" "${run[@]}" --experts 4 --router-scale $scale
done

# ---- a stranger that is silent where rank 0 should be
if command -v python3 >/dev/null; then
    python3 -c "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)
time.sleep(3000)" >port & stranger=$!
    eventually $stranger [ -s port ]
    port=$(cat port)
    expect 69 "cannot reach rank 0 at 127.0.0.1:$port" env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" \
        "${run[@]}" --init-timeout 1
    kill $stranger
else
    echo "SKIPPED a stranger that is silent where rank 0 should be: no python3"
fi

# ---- what all ranks find is said once; what they cannot know of each other, by each
said() { [ "$(grep -c "$1" out)" -eq "$2" ]; }
launch() { ("$root/scripts/launch.sh" -n 3 "$train_gpt" "$@") >out 2>&1; code=$?; }
launch --pp-schedule interleaved
check "a faulty command line is said once: $(cat out)" said 'error: --pp-schedule interleaved' 1
check "its code is 64: $code" [ $code -eq 64 ]
launch --train-data 'nowhere/*' --val-every 0 "${tiny[@]}"
check "missing data are said once: $(cat out)" said 'error: --train-data nowhere/\*' 1
check "its code is 74: $code" [ $code -eq 74 ]

# ---- a rank that outlives the first one has the folder still. Started by hand: the kernel continues stopped ranks whose
# launcher dies, because it leaves them no parent in their session.
mkdir meeting
ranks=()
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 "${run[@]}" --init fs --init-folder meeting \
        --max-steps 100000 --val-every 0 -o outlived >launched.$rank 2>&1 &
    ranks+=($!)
done
eventually "${ranks[0]}" grep -qs '^step    3/' launched.0
kill -STOP "${ranks[1]}" && kill -9 "${ranks[0]}"
wait "${ranks[0]}" 2>/dev/null
expect 64 "outlived: another run is writing there" "${run[@]}" --resume 1 -o outlived --val-every 0 --max-steps 10
kill -9 "${ranks[1]}"
wait "${ranks[1]}" 2>/dev/null   # a process that was killed takes a moment to go
expect 0 "step   10/10" "${run[@]}" --resume 1 -o outlived --val-every 0 --max-steps 10

# ---- samples: several, after a prompt; what `generate` says is the same
of data
expect 0 "generating 2 of 2:" "${run[@]}" --sample-every 2 --sample-tokens 6 --sample-prompt "12 13" --sample-count 2 --temperature 0 -o sampled
awk '/^generating 1/{on=1} /^generating 2/{on=0} on' out | sed '1,2d' >first
awk '/^generating 2/{on=1} /^checkpoint|^device/{on=0} on' out | sed '1,2d' >second
check "equal ones at temperature 0" cmp first second
"$train_gpt" generate --model sampled --prompt "12 13" --tokens 6 --temperature 0 >generated 2>/dev/null
check "as generate writes: $(cat generated first)" [ "$(head -c "$(stat -c %s generated)" first)" = "$(cat generated)" ]
expect 0 "generating 2 of 2:" "${run[@]}" --sample-every 2 --sample-tokens 40 --sample-count 2
check "drawn apart" [ "$(sed -n '/^generating 1/,/^generating 2/p' out | sed 1d | head -n -1)" != "$(sed -n '/^generating 2/,/^---$/p' out | sed 1d)" ]

# ---- sequences as long as the model that is given, unless they are named
positions() { ("$train_gpt" --print-config "$@" | grep '^seq-len='); }
for what in "--model begun:32" "--model model.bin:32" "--model begun/step_00000002:32" "--model gpt3:350M:2048" "--model d12 --seq-len 64:64" \
    "--arch begun/step_00000002/config.json:32" "--model missing:1024"; do
    check "${what%:*}: $(positions ${what%:*})" [ "$(positions ${what%:*})" = "seq-len=${what##*:}" ]
done

# ---- limits
expect 74 "File too large" bash -c 'ulimit -f 8; exec "$@"' _ "${run[@]}" -o limited
expect 74 "File too large" bash -c 'ulimit -f 1; exec "$@"' _ "$tokenize" --quiet --output limited-data numbers.txt
for kilobytes in 100000 200000 400000 800000 1500000; do
    timeout 600 bash -c 'ulimit -v $0; exec "$@"' $kilobytes "${run[@]}" >out 2>&1 </dev/null
    code=$?
    [ $code -eq 0 ] || { [ $code -eq 69 ] && grep -qiE 'memory|no room|thread' out; } || { [ $code -eq 127 ] && grep -q 'loading shared libraries' out; }
    verdict $? "ulimit -v $kilobytes: $code, $(tail -n 3 out)"
done

# ---- nothing waits or reads for ever
expect 74 "/dev/zero: is a device" "$tokenize" --quiet --max-bytes 1MB --output none /dev/zero
expect 74 "--files-from /dev/zero: is a device" "$tokenize" --quiet --output none --files-from /dev/zero
mkfifo pipe
expect 74 "pipe: is a pipe" "$tokenize" --quiet --output none pipe
expect 74 "--files-from pipe: is a pipe" "$tokenize" --quiet --output none --files-from pipe
mkdir nothing
expect 64 "nothing: there is no file in this folder" "$tokenize" --quiet --output none nothing
expect 0 "1000001 training" bash -c 'yes | timeout 600 "$0" --quiet --max-bytes 1MB --output cut -' "$tokenize"
expect 65 "-: this is not text" bash -c 'timeout 600 "$0" --quiet --max-bytes 1MB --output none - </dev/zero' "$tokenize"
expect 0 "5 training" bash -c '"$0" --quiet --output substituted <(echo abc)' "$tokenize"
expect 74 "/dev/zero: is a device" timeout 600 "$loss_curve" /dev/zero -o x.svg

mkfifo full
sleep 5000 <full & reader=$!
exec 9>full
timeout 900 "${run[@]}" --max-steps 100000000 --log-every 1 --val-every 0 -o piped >&9 2>&9 & pid=$!
exec 9>&-
told() { [ "$(stat -c %s piped/metrics.jsonl 2>/dev/null || echo 0)" -gt 600000 ]; }   # lines for three pipes
eventually $pid told
kill -TERM $pid
wait $pid
[ $? -eq 75 ]; verdict $? "training into a full pipe goes on, and ends at SIGTERM"
kill $reader
check "and has saved" compgen -G 'piped/step_*'

cd "$root" && echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
