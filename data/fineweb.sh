#!/usr/bin/env bash
# FineWeb or FineWeb-Edu (text of the web), with GPT-2's vocabulary, into data/fineweb10B, data/edu_fineweb10B and so on.
#
#   data/fineweb.sh [--edu] [--size 10B|100B|350B] [--files N] [options of tokenize]
#
# Downloads the Parquet files of that sample (10B: 28 GB), only the first N with --files; what is there already is kept.
# Their hashes are those that the server lists. Parquet needs Python with pyarrow (pip install pyarrow). Validation data
# are the first 100 million tokens, as in llm.c. VOCABULARY names another tokenizer than GPT-2's.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh
help_if_asked "$@"
dataset=HuggingFaceFW/fineweb prefix='' size=10B count=1000000 rest=()
while [ $# -gt 0 ]; do
    case "$1" in
        --edu) dataset=HuggingFaceFW/fineweb-edu prefix=edu_; shift ;;
        --size) size=$2; shift 2 ;;
        --files) count=$2; shift 2 ;;
        *) rest+=("$1"); shift ;;
    esac
done
need_tokenize
python=${PYTHON:-python3}
"$python" -c 'import pyarrow.parquet' 2>/dev/null ||
    fail 69 "$python has no pyarrow, which reads Parquet; run \`$python -m pip install pyarrow\`"
out=data/${prefix}fineweb$size
lock_folder "$out"
raw=$out/raw
mkdir -p "$raw"
# the list of files: "SHA256 path" a line
if [ ! -s "$raw/files.txt" ]; then
    download "https://huggingface.co/api/datasets/$dataset/tree/main/sample/${size}T" "$raw/tree.json"
    "$python" -c '
import json, sys
for entry in json.load(sys.stdin):
    if entry["path"].endswith(".parquet"):
        print(entry["lfs"]["oid"], entry["path"])' <"$raw/tree.json" >"$raw/files.part"
    mv "$raw/files.part" "$raw/files.txt"
fi
parquet=()
while read -r hash path; do
    [ ${#parquet[@]} -lt "$count" ] || break
    parquet+=("$raw/$(basename "$path")")
    fetch "https://huggingface.co/datasets/$dataset/resolve/main/$path" "${parquet[-1]}" "$hash"
done <"$raw/files.txt"
[ ${#parquet[@]} -gt 0 ] || fail 65 "$raw/files.txt lists no file; remove it and run this again"
gpt2_vocabulary
"$python" data/parquet_to_jsonl.py --field text "${parquet[@]}" |
    "$tokenize" --overwrite --tokenizer "$vocabulary" --output "$out" --name "${prefix}fineweb" --format jsonl --field text \
        --val-tokens 100000000 "${rest[@]}" -
