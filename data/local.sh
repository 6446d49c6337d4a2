#!/usr/bin/env bash
# Makes a corpus without any download: the C and C++ headers below /usr/include, tokenized into data/local with a
# vocabulary learned from them on the spot.
#
#   data/local.sh [--output DIR] [--folder DIR] [--max-bytes SIZE] [--vocab N|bytes] [options of tokenize]
#
# The files are taken in an order that depends only on their names, until SIZE (24MB) is reached. A document is a stretch
# of a file between blank lines; 5% of all become validation data, so that it is text of the same files as training.
# The vocabulary has N tokens (1024), or is that of single bytes. Run again, it replaces what it wrote before,
# and only that: --overwrite replaces what else lies there.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/common.sh

output=data/local folder=/usr/include max_bytes=24MB vocab=1024
rest=() overwrite=()
while [ $# -gt 0 ]; do
    case "$1" in
        --output) output=$2; shift 2 ;;
        --folder) folder=$2; shift 2 ;;
        --max-bytes) max_bytes=$2; shift 2 ;;
        --vocab) vocab=$2; shift 2 ;;
        --overwrite) overwrite=(--overwrite); shift ;;
        -h|--help) help_if_asked --help ;;
        *) rest+=("$1"); shift ;;
    esac
done

need_tokenize
mkdir -p "$output"
mark=$output/made-by-local.sh
if [ -e "$mark" ] || [ "$output" = data/local ]; then   # its own
    overwrite=(--overwrite)
elif [ ${#overwrite[@]} -eq 0 ] && [ -n "$(ls -A "$output")" ]; then
    fail 64 "--output $output: holds files that this script has not made; give another folder, or --overwrite"
fi
touch "$mark"
lock_folder "$output"
# The C++ standard library's headers have no suffix.
find "$folder" -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.hh' -o -name '*.cuh' \
    -o -path '*/c++/*' ! -name '*.*' \) | LC_ALL=C sort >"$output/files.txt"
input=(--files-from "$output/files.txt" --shuffle-files --max-bytes "$max_bytes" --separator '\n\n' --keep-separator)
if [ "$vocab" = bytes ]; then
    tokenizer=bytes
else
    tokenizer=$output/tokenizer
    "$tokenize" "${overwrite[@]}" --train "$vocab" --output "$tokenizer" "${input[@]}"
fi
"$tokenize" --tokenizer "$tokenizer" --val-fraction 0.05 --output "$output" "${overwrite[@]}" "${input[@]}" "${rest[@]}"
