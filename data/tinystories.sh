#!/usr/bin/env bash
# TinyStories (2.2 GB of stories written by GPT-4), with GPT-2's vocabulary, into data/tinystories.
#
#   data/tinystories.sh [options of tokenize]
#
# These are the stories by GPT-4 alone, as published in TinyStoriesV2; llm.c takes an archive that has those by GPT-3.5 too.
# Validation data are the published ones. VOCABULARY names another tokenizer than GPT-2's.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/tinystories
lock_folder "$out"
base=https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main
for part in train valid; do
    fetch "$base/TinyStoriesV2-GPT4-$part.txt" $out/raw/TinyStories-$part.txt
done
gpt2_vocabulary
"$tokenize" --overwrite --tokenizer "$vocabulary" --output $out --name TinyStories --separator '<|endoftext|>' --strip \
    --val-files $out/raw/TinyStories-valid.txt "$@" -- $out/raw/TinyStories-train.txt
