#!/usr/bin/env bash
# MMLU's 14,042 test questions of 57 subjects, with GPT-2's vocabulary, into data/mmlu/mmlu_test.bin.
#
#   data/mmlu.sh
#
# Questions are put as llm.c puts them, the text of each answer a completion of "Question: ... Answer:"; the original
# evaluation gives five examples first and asks for a letter, so its figures are others.
# `train_gpt --evaluate mmlu` reads them. VOCABULARY names another tokenizer than GPT-2's: that of the model.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/mmlu
lock_folder "$out"
fetch https://people.eecs.berkeley.edu/~hendrycks/data.tar $out/raw/mmlu.tar
rm -rf $out/raw/data
tar -xf $out/raw/mmlu.tar -C $out/raw data/test || fail 65 "$out/raw/mmlu.tar has no folder data/test"
gpt2_vocabulary
"$tokenize" --overwrite --questions mmlu --tokenizer "$vocabulary" --output $out/mmlu_test.bin $out/raw/data/test
