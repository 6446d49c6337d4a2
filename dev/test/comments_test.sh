#!/usr/bin/env bash
# Comments of the sources: they begin with what a thing does, and the files and names that they mention exist.
#
#   1. no comment of product code, on lines of its own or behind code, begins with Of, What, Where, Whether, Those or The same;
#   2. a file that a comment names is there: NAME.h, NAME.cuh, NAME.cu, NAME.cpp, NAME.sh, NAME.py, alone or with its whole path;
#   3. an identifier in backquotes stands in the code.
source "$(dirname "$0")/common.sh"
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- llmc dev '*.cu' | grep -E '\.(h|cuh|cu|cpp)$')
mapfile -t product < <(printf '%s\n' "${files[@]}" | grep -E '^llmc/|^train_gpt\.cu$' | grep -vE '_test(ing)?\.')
[ "${#product[@]}" -ge 300 ]
verdict $? "only ${#product[@]} product files were found"

# FILE:LINE:TEXT of comments; with first=1 only the first line of a block and those behind code.
comments() {   # FIRST FILE...
    local first=$1
    shift
    awk -v first="$first" '
        FNR == 1 { block = 0 }
        /^[ \t]*\/\// {
            if (!block || !first) { text = $0; sub(/^[ \t]*\/\/+ ?/, "", text); print FILENAME ":" FNR ":" text }
            block = 1; next }
        { block = 0 }
        match($0, /[^ \t][ \t]+\/\/ /) { print FILENAME ":" FNR ":" substr($0, RSTART + RLENGTH) }' "$@"
}

comments 1 "${product[@]}" >"$work/firsts"
[ "$(wc -l <"$work/firsts")" -ge 3000 ]
verdict $? "only $(wc -l <"$work/firsts") comments were found"
while IFS= read -r line; do
    verdict 1 "a comment says what a thing does, verb first: $line"
done < <(grep -iE '^[^:]*:[0-9]+:\(?(of|what|where|whether|those|the same)\b' "$work/firsts")
verdict 0 ""

comments 0 "${files[@]}" >"$work/all"
others=" mpi.h omp.h semaphore.h sysexits.h nvtx3/nvToolsExt.h data/NAME.sh "   # of the system, CUTLASS's, NVTX's; a pattern
git ls-files --cached --others --exclude-standard | sed 's#.*/##' | sort -u >"$work/names"
while IFS=: read -r file line name; do
    [[ $others == *" $name "* ]] || if [[ $name == */* ]]; then [ -e "$name" ]; else grep -qxF -- "$name" "$work/names"; fi
    verdict $? "$file:$line: there is no file $name"
done < <(sed -E 's/^([^:]*:[0-9]+):.*/\1/' "$work/all" | paste -d'\t' - "$work/all" | awk -F'\t' '{
    text = $2; sub(/^[^:]*:[0-9]+:/, "", text)
    while (match(text, /[A-Za-z0-9_\/.-]*[A-Za-z0-9_]\.(cuh|cu|cpp|h|sh|py)([^A-Za-z0-9_]|$)/)) {
        name = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH)
        sub(/[^A-Za-z0-9_]$/, "", name); print $1 ":" name } }' | sort -u)

{ sed 's#//.*##' "${files[@]}"; echo "jmp ret"; } | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u >"$work/identifiers"
count=0
while IFS=: read -r file line name; do
    grep -qxF -- "$name" "$work/identifiers"
    verdict $? "$file:$line: nothing is named \`$name\`"
    count=$((count + 1))
done < <(awk '{ place = $0; sub(/^[^:]*:[0-9]+:/, "", $0); place = substr(place, 1, length(place) - length($0))
    text = $0
    while (match(text, /`[A-Za-z_][A-Za-z0-9_]*(\(\))?`/)) {
        name = substr(text, RSTART + 1, RLENGTH - 2); text = substr(text, RSTART + RLENGTH)
        sub(/\(\)$/, "", name); print place name } }' "$work/all")
[ "$count" -ge 300 ]
verdict $? "only $count names were found in comments"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
