#!/usr/bin/env bash
# Tiny Shakespeare (1.1 MB), with GPT-2's vocabulary, into data/tinyshakespeare.
#
#   data/tinyshakespeare.sh [options of tokenize]
#
# Documents (what one person says) and tokens are llm.c's: with GPT-2's vocabulary 32,768 for validation, the first, and
# 305,260 for training. VOCABULARY names another tokenizer than GPT-2's.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/tinyshakespeare
lock_folder "$out"
fetch https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt \
    $out/raw/tiny_shakespeare.txt 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
gpt2_vocabulary
"$tokenize" --overwrite --tokenizer "$vocabulary" --output $out --name tiny_shakespeare --separator '\n\n' --keep-separator \
    --val-tokens 32768 "$@" $out/raw/tiny_shakespeare.txt
