#!/usr/bin/env bash
# ARC's test questions of natural science, with GPT-2's vocabulary: the 2,376 easy ones into data/arc/arc_easy_test.bin,
# the 1,172 of the challenge into data/arc/arc_challenge_test.bin.
#
#   data/arc.sh
#
# `train_gpt --evaluate arc_easy,arc_challenge` reads them. VOCABULARY names another tokenizer than GPT-2's: that of the
# model.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
need_tokenize
out=data/arc
lock_folder "$out"
fetch https://ai2-public-datasets.s3.amazonaws.com/arc/ARC-V1-Feb2018.zip $out/raw/arc.zip
command -v unzip >/dev/null || fail 69 "unzip is not installed (apt-get install unzip)"
for set in Easy Challenge; do
    unzip -p $out/raw/arc.zip "*ARC-$set-Test.jsonl" >$out/raw/$set.jsonl || fail 65 "$out/raw/arc.zip has no ARC-$set-Test.jsonl"
done
gpt2_vocabulary
"$tokenize" --overwrite --questions arc_easy --uint32 --tokenizer "$vocabulary" --output $out/arc_easy_test.bin $out/raw/Easy.jsonl
"$tokenize" --overwrite --questions arc_challenge --uint32 --tokenizer "$vocabulary" --output $out/arc_challenge_test.bin $out/raw/Challenge.jsonl
