#!/usr/bin/env bash
# The scripts of dev/ that the documentation names and that no other test runs: each once, made small. What needs Python
# packages that are missing (tiktoken, tokenizers, numpy, torch, transformers) is skipped by name.
source "$(dirname "$0")/common.sh"
export BUILD=${BUILD:-build}
fp32=$BUILD/cpu-fp32/train_gpt
needs "$train_gpt" "$fp32" "$tokenize"
has() {   # PACKAGES...
    local package
    for package; do
        python3 -c "import $package" 2>/dev/null || { echo "SKIPPED $script: python3 has no $package" && return 1; }
    done
}
runs() {   # MESSAGE COMMAND...: the script ends well and says so
    timeout 900 "${@:2}" >"$work/out" 2>&1 </dev/null
    local status=$?
    [ $status -eq 0 ] && grep -qaE -- "$1" "$work/out"
    verdict $? "${*:2}: exit code $status, expected $1: $(tail -n 5 "$work/out" | tr -d '\0')"
}

script=english_corpus.py
runs "" python3 dev/reference/english_corpus.py --output "$work/english.txt" --mb 0.05 --folder docs
check "english_corpus.py found text" [ -s "$work/english.txt" ]
"$tokenize" --train 400 --quiet --output "$work/words" docs >/dev/null || exit 70
vocabulary=$work/words/tokenizer.tiktoken
script=tiktoken_compare.py
has tiktoken && runs 'all .*no difference' python3 dev/reference/tiktoken_compare.py --tokenize "$tokenize" --vocab "$vocabulary" --mb 0.05
script=tokenizer_speed.py
has tiktoken && runs 'whole program.*ratio' python3 dev/reference/tokenizer_speed.py --tokenize "$tokenize" --vocab "$vocabulary" \
    --corpus "$work/english.txt" --rounds 2 --copies 2
script=mixed_corpus.py
runs "" python3 dev/reference/mixed_corpus.py code --output "$work/code.txt" --mb 0.05 --folder dev
check "mixed_corpus.py found code" [ -s "$work/code.txt" ]
mkdir -p "$work/catalogues"
python3 - "$work/catalogues" <<'END'   # one that gettext reads, and one whose plural forms raise an IndexError
import struct, sys
def write(name, texts):
    ids, values = b"", b""
    at, table = 28 + 16 * len(texts), []
    for key, value in texts:
        table.append((len(key), len(ids), len(value), len(values)))
        ids += key + b"\0"
        values += value + b"\0"
    words = [0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0]
    for length, place, _, _ in table: words += [length, at + place]
    for _, _, length, place in table: words += [length, at + len(ids) + place]
    open(f"{sys.argv[1]}/{name}.mo", "wb").write(struct.pack(f"<{len(words)}I", *words) + ids + values)
head = b"Content-Type: text/plain; charset=UTF-8\n"
write("good", [(b"", head), (b"yes", "да, конечно".encode())])
write("damaged", [(b"", head + b"Plural-Forms: two\n"), (b"yes", b"ja")])
END
runs "" python3 dev/reference/mixed_corpus.py languages --output "$work/languages.txt" --mb 0.05 --folder "$work/catalogues"
check "mixed_corpus.py passes over a damaged catalogue" grep -q конечно "$work/languages.txt"
script=tokenizer_rivals.py
runs 'code.txt.* qwen: ours' python3 dev/reference/tokenizer_rivals.py --tokenize "$tokenize" --vocab "$vocabulary" \
    --corpus "$work/english.txt" --corpus "$work/code.txt" --rounds 2
script=tokenizers_compare.py
has tiktoken tokenizers && runs 'no difference' python3 dev/reference/tokenizers_compare.py --tokenize "$tokenize" \
    --json "$work/words/tokenizer.json" --mb 0.05
script=added_tokens.py
has tokenizers && runs 'few, special tokens as text.*no difference' python3 dev/reference/added_tokens.py --tokenize "$tokenize" --texts 300
script=sentencepiece_tokenizers.py
has tokenizers && runs 'no difference' python3 dev/reference/sentencepiece_tokenizers.py --tokenize "$tokenize" --tokenizers 20 --texts 100
script=split_patterns.py
has tokenizers && runs '^0 differ' python3 dev/reference/split_patterns.py --tokenize "$tokenize" --patterns 150 --every 97
script=unicode_classes.py
if has tiktoken tokenizers; then
    runs 'kinds of characters' python3 dev/reference/unicode_classes.py
    same=$(diff <(tail -n +2 "$work/out") <(tail -n +2 llmc/tokenizer/split/unicode_table.inc) | grep -c '^[<>]')
    verdict "$((same > 0))" "unicode_classes.py makes another table: $same lines"
fi
script=make_golden.py
if has numpy; then
    runs "" python3 dev/reference/make_golden.py "$work/golden.safetensors"
    [ "$(stat -c %s "$work/golden.safetensors")" -eq "$(stat -c %s dev/reference/golden_gpt.safetensors)" ]
    verdict $? "make_golden.py makes a file of another size"
fi
script=make_golden_llama.py
if has torch transformers; then
    runs "" python3 dev/reference/make_golden_llama.py "$work/golden"
    for file in golden_{llama,qwen3}/{model,logits}.safetensors; do
        [ "$(stat -c %s "$work/golden/$file")" -eq "$(stat -c %s "dev/reference/$file")" ]
        verdict $? "make_golden_llama.py makes a $file of another size"
    done
fi
script=transformers_compare.py
if has torch transformers; then
    # a model that stands for GPT-2's folder
    "$tokenize" --tokenizer "$work/words" --quiet --output "$work/data" --val-tokens 2000 docs >/dev/null &&
        "$fp32" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 --heads 2 --channels 32 \
            --seq-len 128 --micro-batch 2 --max-steps 20 --lr 1e-2 --sample-every 0 --output-dir "$work/run" >"$work/log" 2>&1 &&
        "$fp32" export --model "$work/run" --output "$work/model" >>"$work/log" 2>&1
    verdict $? "a model to compare: $(tail -n 3 "$work/log")"
    compare=(python3 dev/reference/transformers_compare.py "$fp32" "$work/model")
    runs "" "${compare[@]}" --prompt 'The ' --tokens 8
    runs "" "${compare[@]}" --speed --tokens 8 --at-least 0
    runs "" "${compare[@]:0:3}" "$work/made" --losses --make
    runs "" "${compare[@]:0:3}" "$work/rounded" --fp8
fi
script=longer_context.py
has torch transformers && runs ' 0 differ' python3 dev/reference/longer_context.py "$fp32"
script=config_defaults.py
has transformers && runs ' 0 differ' python3 dev/reference/config_defaults.py "$fp32"
script=random_configs.py
has torch transformers tokenizers &&
    runs ' 0 differ' python3 dev/reference/random_configs.py "$fp32" "$tokenize" --models 12
script=evaluations.py
has torch transformers tokenizers && runs '^0 differ' python3 dev/reference/evaluations.py "$fp32" "$tokenize"
# published_steps.py finds again the share of the device's speeds by which made rows are slower, and says what it leaves out
published=(python3 dev/reference/published_steps.py --train-gpt "$BUILD/cpu-bf16/train_gpt")
python3 - "$work/steps.json" <<'END'
import json, sys
row = {"source_key": "made", "gpu": "H100", "gpus": 1, "precision": "bf16", "seq_len": 1024, "flops_convention": None}
rows = []
for i in range(9):
    model = {"name": "made", "layers": 2 + i % 3, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 50304}
    layout = {"dp": 1, "recompute": "full" if i < 6 else "none"}
    rows.append({**row, "id": f"m{i}", "model": model, "layout": layout, "micro_batch": 4, "global_batch": 4 + 4 * (i % 2), "measured": {"step_s": 1}})
rows[8] = {**rows[8], "precision": "fp8"}
json.dump(rows, open(sys.argv[1], "w"))
END
runs '^9 rows, 8 planned, 0 of them to fit, 8 judged$' "${published[@]}" "$work/steps.json" --write "$work/planned.json" --share 0.5
check "what is not judged is said" grep -qx ' *1 not judged: matmuls in 8 bits' "$work/out"
python3 - "$work/steps.json" "$work/planned.json" <<'END'
import json, sys
rows, planned = (json.load(open(path)) for path in sys.argv[1:])
for row in rows[:8]:
    row["measured"]["step_s"] = planned[row["id"]]
json.dump(rows, open(sys.argv[1], "w"))
END
runs '^  made, H100: 0\.(49|50)[0-9]*$' "${published[@]}" "$work/steps.json"
check "its errors are small" grep -qE '^all: +5 rows +mean \|error\| +[01]\.[0-9]% ' "$work/out"
check "the better layout of each pair is found" grep -qE 'is found in ([0-9]+) of \1 pairs, 100%$' "$work/out"
python3 - "$work/steps.json" <<'END'
import json, sys
rows = json.load(open(sys.argv[1]))
for i, row in enumerate(rows[:8]):   # two sources, half of whose steps take 1.4 and 1.6 times the planned time
    row["source_key"] = ("made", "other")[i % 2]
    row["measured"]["step_s"] *= (1.4, 1.6)[i // 4]
json.dump(rows, open(sys.argv[1], "w"))
END
runs '^  dense, newer +least 1\.40 +usual 1\.50 +most 1\.60 +\(8 rows of 2 sources\)$' "${published[@]}" "$work/steps.json" --factors "$work/planned.json"
check "each source is judged by the other" grep -qE '^  model and generation +all +8 rows +error +6\.[0-9]% +inside 100% of width 1\.60 +inside 1\.5 100% +goals: mean 15% reached, 90% inside reached$' "$work/out"
runs '^SKIPPED dev/reference/published_steps.py: no file of published steps' env -u PUBLISHED_STEPS "${published[@]}"
steps=${PUBLISHED_STEPS:-../shared/data/published_steps.json}
runs '^(all: .* mean error|SKIPPED dev/reference/published_steps.py: )' "${published[@]}" "$steps" --only llm_c,llmq,tinyllama
grep -a ^SKIPPED "$work/out"
script=plan_against_runs.sh   # its row; whether the plan is near enough is for a machine with nothing else to do
dev/bench/plan_against_runs.sh --ranks 1 --rounds 1 --seq-len 16 >"$work/out" 2>&1
check "$script: a row of a plan beside a run: $(tail -n 2 "$work/out")" grep -qE '^\| 1 \| .*\| (yes|no) \| [-+.0-9]+% \|$' "$work/out"
script=pytorch_step.py
has torch && runs 'tokens' python3 dev/bench/pytorch_step.py --batch 1 --seq-len 8 --steps 2
runs '\| 1 \| 16 \| train_gpt \| bf16' dev/bench/against_peers.sh --shape 1x16 --rounds 1
has torch transformers && runs '\| 1 \| 16 \| train_gpt \| bf16 .*x \| .*x \|$' dev/bench/against_peers.sh --llama --shape 1x16 --rounds 1

# against_peers.sh with programs that only print: its rows come at once, without what PyTorch would have to emulate
mkdir -p "$work"/peers/{cpu,cpu-bf16,cpu-fp32,bin}
cat >"$work/peers/cpu/tokenize" <<'END'
#!/usr/bin/env bash
while [ "$1" != --output ]; do shift; done
mkdir -p "$2" && touch "$2/train_0.bin" "$2/val_0.bin"
END
cat >"$work/peers/cpu-fp32/train_gpt" <<'END'
#!/usr/bin/env bash
for step in 1 2 3; do echo "step $step/3 | $((50 * step)).00 ms | of it"; done
END
cat >"$work/peers/bin/python3" <<'END'
#!/usr/bin/env bash
[[ "$*" != *"$FAILS"* ]] || exit 1
for step in 1 2 3; do echo "step $step: loss 1.0, $((100 * step)).0 ms"; done
END
cp "$work/peers/cpu-fp32/train_gpt" "$work/peers/cpu-bf16/"
chmod +x "$work"/peers/*/*
echo 'flags : fma avx2' >"$work/avx2" && echo 'flags : avx2 avx512_bf16' >"$work/with_bf16"
peers() {   # CODE CPUINFO FAILS OPTIONS...: leaves the table's rows without its numbers in $work/rows
    PATH=$work/peers/bin:$PATH BUILD=$work/peers CPUINFO=$work/$2 FAILS=$3 dev/bench/against_peers.sh "${@:4}" >"$work/out" 2>&1
    local status=$?
    sed -nE 's/^\| [0-9]+ \| [0-9]+ \| ([^|]+) \| ([^|]+) \| .*\| (.*) \| (.*) \|$/\1 \2 [\3] [\4]/p' "$work/out" >"$work/rows"
    verdict $((status != $1)) "against_peers.sh ${*:2}: exit code $status: $(tail -n 5 "$work/out")"
}
rows() { verdict $(($(diff <(printf '%s\n' "$@") "$work/rows" | grep -c '^[<>]') > 0)) "rows: $(cat "$work/rows"), expected $*"; }
peers 0 with_bf16 none --rounds 2
rows 'PyTorch fp32 [] [1.00x]' 'train_gpt fp32 [] [2.00x]' 'PyTorch bf16 [] [1.00x]' 'train_gpt bf16 [] [2.00x]'
verdict "$(($(grep -c '^(4x64, turn 1 of 2, .* ms)$' "$work/out") != 4))" "a line for each turn before the last: $(cat "$work/out")"
peers 0 avx2 none --rounds 1
rows 'PyTorch fp32 [] [1.00x]' 'train_gpt fp32 [] [2.00x]' 'train_gpt bf16 [] []'
check "what is left out is said" grep -qx '(PyTorch in bf16 is left out: this processor has no instructions for it)' "$work/out"
peers 0 with_bf16 none --rounds 1 --llama
rows 'transformers fp32 [1.00x] []' 'PyTorch fp32 [1.00x] [1.00x]' 'train_gpt fp32 [2.00x] [2.00x]' \
    'transformers bf16 [1.00x] []' 'PyTorch bf16 [1.00x] [1.00x]' 'train_gpt bf16 [2.00x] [2.00x]'
cp "$work/rows" "$work/one_round"
peers 0 with_bf16 none --rounds 2 --llama
check "no ratio to a program with a turn to come" cmp "$work/rows" "$work/one_round"
peers 0 avx2 none --rounds 1 --llama
rows 'transformers fp32 [1.00x] []' 'PyTorch fp32 [1.00x] [1.00x]' 'train_gpt fp32 [2.00x] [2.00x]' 'train_gpt bf16 [] []'
peers 1 with_bf16 'precision bf16' --rounds 1
rows 'PyTorch fp32 [] [1.00x]' 'train_gpt fp32 [] [2.00x]'
peers 0 with_bf16 'import torch' --rounds 1
rows 'train_gpt fp32 [] []' 'train_gpt bf16 [] []'
check "no PyTorch is said" grep -q 'no PyTorch: left out' "$work/out"
runs '82 passed, 0 failed' env PRECISIONS=bf16 dev/test/same_runs.sh "$work/same"

# pip that downloads nothing: its packages hold one header
mkdir -p "$work/tree/dev/tools" "$work/bin" && cp dev/tools/fetch_headers.sh "$work/tree/dev/tools"
cat >"$work/bin/python3" <<END
#!/usr/bin/env bash
[ "\$1 \$2" = "-m pip" ] || exec $(command -v python3) "\$@"
while [ \$# -gt 1 ]; do [ "\$1" != --dest ] || to=\$2; shift; done
exec $(command -v python3) -c 'import sys, zipfile
zipfile.ZipFile(sys.argv[1], "w").writestr("nvidia/include/" + sys.argv[2] + ".h", "")' "\$to/\$1.whl" "\${1%%=*}"
END
chmod +x "$work/bin/python3"
runs "newest: nvidia-nccl" env PATH="$work/bin:$PATH" bash "$work/tree/dev/tools/fetch_headers.sh"
for end in oldest newest; do check "headers, $end" compgen -G "$work/tree/third_party/headers/$end/include/nvidia-nccl*.h"; done

# what the pages name and nothing runs
for path in $(grep -ohE 'dev/(bench|reference|test|tools)/[A-Za-z_0-9]+\.(py|sh)' README.md docs/*.md | grep -v NAME | sort -u); do
    { cat Makefile dev/tools/*.mk .ci/run; ls dev/test/*_test.sh; find dev/test -name '*.sh' ! -path "$path" -exec cat {} +; } |
        grep -F "$(basename "$path")" >/dev/null
    verdict $? "$path: the documentation names it, and no test runs it"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
