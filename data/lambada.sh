#!/usr/bin/env bash
# LAMBADA's 5,153 test texts, whose last word is to be found (OpenAI's copy, as GPT-2 was measured on), with GPT-2's
# vocabulary, into data/lambada/lambada_test.bin.
#
#   data/lambada.sh
#
# `train_gpt --evaluate lambada` reads them. VOCABULARY names another tokenizer than GPT-2's: that of the model.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/lambada
lock_folder "$out"
fetch https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl $out/raw/lambada_test.jsonl
gpt2_vocabulary
"$tokenize" --overwrite --questions lambada --tokenizer "$vocabulary" --output $out/lambada_test.bin $out/raw/lambada_test.jsonl
