#!/usr/bin/env bash
# PIQA's 1,838 validation questions on how things are done, with GPT-2's vocabulary, into data/piqa/piqa_val.bin.
#
#   data/piqa.sh
#
# `train_gpt --evaluate piqa` reads them. VOCABULARY names another tokenizer than GPT-2's: that of the model.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/piqa
lock_folder "$out"
fetch https://yonatanbisk.com/piqa/data/valid.jsonl $out/raw/valid.jsonl
fetch https://yonatanbisk.com/piqa/data/valid-labels.lst $out/raw/valid-labels.lst
[ "$(grep -c . $out/raw/valid.jsonl)" = "$(grep -c . $out/raw/valid-labels.lst)" ] ||
    fail 65 "$out/raw/valid-labels.lst has another number of lines than valid.jsonl"
# the answers come in a file of their own: each is put into its question's object
paste <(grep . $out/raw/valid.jsonl) <(grep . $out/raw/valid-labels.lst) |
    sed -E 's/\}[[:space:]]*\t([01])[[:space:]]*$/, "label": \1}/' >$out/raw/labelled.jsonl
gpt2_vocabulary
"$tokenize" --overwrite --questions piqa --uint32 --tokenizer "$vocabulary" --output $out/piqa_val.bin $out/raw/labelled.jsonl
