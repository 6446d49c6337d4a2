#!/usr/bin/env bash
# HellaSwag's 10,042 validation questions, with GPT-2's vocabulary, into data/hellaswag/hellaswag_val.bin.
#
#   data/hellaswag.sh
#
# `train_gpt --hellaswag 1` reads them. VOCABULARY names another tokenizer than GPT-2's: that of the model.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/hellaswag
lock_folder "$out"
fetch https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl $out/raw/hellaswag_val.jsonl
gpt2_vocabulary
"$tokenize" --overwrite --questions hellaswag --tokenizer "$vocabulary" --output $out/hellaswag_val.bin $out/raw/hellaswag_val.jsonl
