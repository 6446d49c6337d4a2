#!/usr/bin/env bash
# Checks that the folders of llmc/ build on each other in one order, without cycles.
#
#   1. a file includes only files of its own folder and of folders that stand above it: of llmc/ in the table of
#      docs/architecture.md, of the rooms of llmc/model in the list below (the files beside these rooms bring them together);
#   2. few know the stand-in for machines without a GPU: of the kernels the launch header, the instruction wrappers and
#      the sources that only a CPU build compiles (*_onednn.cpp); of the folders below kernels none.
#   3. no folder has tests alone: those of several things at once are in dev/test;
#   4. mesh and what it includes know no device: none of CUDA's headers;
#   5. the top level has no files but these, and none that a tool left there to be committed.
#
# Tests (*_test.*, and what they share, *_testing.*) may look further down: they try a thing as its users do.
source "$(dirname "$0")/common.sh"
folders=$(sed -nE 's#^\| `llmc/([a-z_]+)/` .*#\1#p' docs/architecture.md | xargs)
# Every include of a file of llmc/ by another one: "file folder included-folder", tests left out.
includes=$(grep -roE --include='*.h' --include='*.cuh' --include='*.cu' --include='*.cpp' '#include "llmc/[a-z_]+/' llmc |
    grep -vE '^[^:]*_test(ing)?\.[a-z]+:' | sed -E 's|^(llmc/([a-z_]+)/[^:]*):#include "llmc/([a-z_]+)/|\1 \2 \3|')
[ "$(wc -l <<<"$includes")" -gt 500 ]
verdict $? "only these includes are found: $includes"

nothing_wrong "every folder of llmc/ has its place in the order" "$(
    for folder in llmc/*/; do [[ " $folders " = *" $(basename "$folder") "* ]] || echo "$folder"; done)"
nothing_wrong "folders include only what stands above them: $folders" "$(
    awk -v order="$folders" 'BEGIN { n = split(order, names, " "); for (i = 1; i <= n; i++) place[names[i]] = i }
        place[$3] > place[$2] { print $1 " includes llmc/" $3 }' <<<"$includes")"
rooms="memory parameters families attention layer stage"
nothing_wrong "rooms of llmc/model include only what stands above them: $rooms" "$(
    grep -roE '#include "llmc/model/[a-z]+/' llmc/model/*/ | grep -vE '^[^:]*_test(ing)?\.' |
        sed -E 's|^llmc/model/([a-z]+)/([^:]*):#include "llmc/model/([a-z]+)/|\1 \3 \2|' |
        awk -v order="$rooms" 'BEGIN { n = split(order, names, " "); for (i = 1; i <= n; i++) place[names[i]] = i }
            !place[$1] || !place[$2] || place[$2] > place[$1]')"
# An implementation of attention knows what is common and itself; sm_90a's takes tiles and their mask from sm_80's.
nothing_wrong "rooms of llmc/kernels/attention do not include each other, but for sm90 and its sm80" "$(
    grep -roE '#include "llmc/kernels/attention/[a-z0-9]+/' llmc/kernels/attention/*/ | grep -vE '^[^:]*_test(ing)?\.' |
        sed -E 's|^llmc/kernels/attention/([a-z0-9]+)/([^:]*):#include "llmc/kernels/attention/([a-z0-9]+)/|\1 \3 \2|' |
        awk '$1 != $2 && !($1 == "sm90" && $2 == "sm80")')"
nothing_wrong "only the launch header, instruction wrappers and sources of the CPU build know the stand-in" "$(
    awk '$3 == "cuda_on_cpu" && $2 != "cuda_on_cpu" { print $1 }' <<<"$includes" | sort -u |
        grep -vE '^llmc/kernels/(launch\.cuh|ptx/ptx(_hopper)?\.cuh|attention/library/[a-z_]*_onednn\.cpp)$')"
nothing_wrong "no folder of llmc/ has tests alone" "$(
    for folder in llmc/*/ llmc/*/*/ llmc/*/*/*/; do
        [ -n "$(find "$folder" -name '*.*' ! -name '*_test.*' ! -name '*_testing.*' -print -quit)" ] || echo "$folder"
    done)"
nothing_wrong "mesh compiles without CUDA's headers and without the stand-in's" "$(
    for header in llmc/mesh/*.h; do "${CXX:-g++}" -std=c++20 -I. -M -x c++ "$header" 2>&1 >/dev/null; done)"
nothing_wrong "the top level holds sources, Makefile, README, licence and dot files alone" "$(
    git ls-files -co --exclude-standard 2>/dev/null | grep -vE '/|^(Makefile|README\.md|LICENSE|train_gpt\.cu|test_gpt\.cu|\.[a-z-]+)$')"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
