#!/usr/bin/env bash
# The commands of the README, in order, as they stand there, each in a pseudo-terminal; and docs/'s that print.
# The model and the number of steps are small: ./train_gpt is a script that adds options of its own behind those given.
# What `make` is asked for must be one of its targets; what would be downloaded is made here, mpirun and sbatch start
# nothing. And docs/options.md is what --help says.
# Alone: keys are typed and what is built is used.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize" "build/$device$variant/loss_curve"
root=$PWD
export TERM=xterm

diff docs/options.md <(dev/tools/options_page.sh "$train_gpt") >"$work/diff"
verdict $? "docs/options.md is not what dev/tools/options_page.sh writes: $(head -n 5 "$work/diff")"
# once among those of training, and of each verb's own
twice=$(awk '/^## `train_gpt/ { split("", seen) } /^\| `--/ && seen[$2]++ { print $2 }' docs/options.md)
[ -z "$twice" ] && [ "$(grep -cE '^\| `--' docs/options.md)" -gt 60 ]
verdict $? "options that are there twice: $twice; in all there are $(grep -cE '^\| `--' docs/options.md)"
sed -E ':a; /\\$/ { N; s/\\\n *//; ba }' README.md | grep -- '--model gpt2:124M.*--lr 6e-4' | has -- '--final-lr-frac 0 --weight-decay 0.1'
verdict $? "the README's command for 124M falls to nothing, and decays"
"$train_gpt" --help | awk 'length($0) > 120 { print; bad = 1 } END { exit bad }'
verdict $? "lines of --help that are longer than 120"

if ! command -v script >/dev/null; then
    echo "SKIPPED the commands of the README: no script (util-linux) for a pseudo-terminal"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
fi
mkdir "$work/tree" "$work/bin" && cp -r data scripts docs "$work/tree" && cd "$work/tree" || exit 70
rm -rf data/*/
ln -s "$tokenize" tokenize && ln -s "$root/build/$device$variant/loss_curve" loss_curve
cat >train_gpt <<END
#!/usr/bin/env bash
small=(--layers 4 --heads 2 --channels 32 --seq-len 32 --micro-batch 1 --total-batch 1024 --max-steps 2 --warmup 1
    --val-max-batches 4 --sample-every 0)
case \$1 in
--*) while [ \$# -gt 0 ]; do [ "\$1" = --model ] && shift || given+=("\$1"); shift; done   # the small sizes are of none
    exec "$train_gpt" "\${given[@]}" "\${small[@]}" ;;
*) exec "$train_gpt" "\$@" ;;   # others have no such options
esac
END
cat >"$work/bin/make" <<END
#!/usr/bin/env bash
for word; do
    [[ \$word = *=* ]] || grep -qE "^\$word:" "$root/Makefile" || { echo "make: no target \$word" && exit 2; }
done
END
# instead of downloads
cat >data/fineweb.sh <<'END'
#!/usr/bin/env bash
[ "${1:-}" != --size ] || size=$2
[ -e "data/fineweb${size:=10B}" ] || ./tokenize -q --tokenizer data/local/tokenizer --output "data/fineweb$size" --val-tokens 5000 \
    --files-from data/local/files.txt --max-bytes 1MB
END
cat >data/hellaswag.sh <<'END'
#!/usr/bin/env bash
mkdir -p data/hellaswag && echo '{"ctx": "1", "endings": ["2", "x"], "label": 0}' >data/hellaswag/questions.jsonl
./tokenize --questions hellaswag --tokenizer data/local/tokenizer --output data/hellaswag/hellaswag_val.bin data/hellaswag/questions.jsonl
END
# instead of several nodes: what these would start is there
printf 'node%d slots=2\n' 0 1 >hosts
cat >"$work/bin/mpirun" <<'END'
#!/usr/bin/env bash
[[ " $* " == *" -np 4 "*" ./train_gpt "*" --model gpt3:6700M "*" --init mpi "* ]]
END
cat >"$work/bin/sbatch" <<'END'
#!/usr/bin/env bash
for word; do [[ $word == --* ]] || [ -x "$word" ] || exit; done
END
chmod +x train_gpt "$work/bin"/*
unset TRAIN_GPT TOKENIZE TINY RUNS NODES LAUNCH AGAIN CUDA_VISIBLE_DEVICES
export GPUS=2

count=0
complaint='^([^ ]+: )?(fatal )?error: |: [*]{3} |^FAILED'
while IFS= read -r command; do
    command=${command/NODES=2 HEAD=node0/NODES=1 HEAD=localhost}
    # </dev/null: not the rest of the commands
    PATH=$work/bin:$PATH timeout 1200 script -qec "${command// .../}" out >/dev/null 2>&1 </dev/null
    verdict $? "$command: $(tail -n 5 out)"
    grep -aqE "$complaint" out   # a text that a model writes may have the word error in it
    verdict $((! $?)) "$command complains: $(grep -aE "$complaint" out | head -n 3)"
    count=$((count + 1))
done < <(awk '/^```/ { inside = /^```sh/; next } inside' "$root/README.md" | sed -E ':a; /\\$/ { N; s/\\\n *//; ba }; s/ +# .*//'
    grep -hE '^\./train_gpt .*--print-(schedule|memory)' "$root"/docs/*.md)
[ "$count" -ge 33 ]
verdict $? "only $count commands were found"
for part in runs/first/options.json runs/first/step_00000002/model.safetensors.index.json runs/first/loss.svg runs/124M/metrics.jsonl; do
    [ -s "$part" ]
    verdict $? "there is no $part"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
