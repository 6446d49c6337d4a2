#!/usr/bin/env bash
# The benchmarks' program: what it lists, measures and writes; with `all`, every benchmark once (minutes). (Speeds are not
# judged, only that they can be true: other work may share the machine.)
# Alone: it measures.
source "$(dirname "$0")/common.sh"
bench=build/$device-bf16/bench
needs "$bench"

"$bench" --list >"$work/list"
missing=0
for name in adamw 'global norm' 'own attention forward' 'library attention backward' 'bias gradient' classifier \
    'embedding backward' 'gelu forward' 'head norms backward' 'layernorm backward' 'matmul weight gradient' \
    'residual + layernorm' 'rotary forward' 'rotary backward' 'swiglu forward' 'swiglu backward' \
    'own attention forward B=[0-9]* NH=9 KV=3' \
    'library attention backward B=[0-9]* NH=9 KV=3' step traffic \
    'experts grouped forward .* routed' 'experts grouped forward .* forced balance' \
    'experts gathered weight gradient .* routed' 'experts copied and grouped forward .* routed' \
    'experts library loop weight gradient .* routed' 'experts library loop weight gradient .* forced balance'; do
    grep -q "^$name" "$work/list" || { echo "not in --list: $name"; missing=1; }
done
verdict $missing "--list names every kind of operation"
for size in 124M 350M 774M 1558M; do [ "$(grep -c "^matmul.* $size " "$work/list")" -eq 15 ] || missing=1; done
verdict $missing "--list has five layers of every model, each in three directions"

"$bench" --filter 'residual R=* C=768' --json "$work/residual.json" >"$work/table"
verdict $? "one operation measured"
rows=$(sed -nE 's/^residual R=([0-9]+) C=768$/\1/p' "$work/list")
# two tensors (R, C) of bf16 are read, one is written
grep -q "\"bytes\": $((3 * rows * 768 * 2)).0" "$work/residual.json" && [ "$(grep -c '"shape"' "$work/residual.json")" -eq 1 ]
verdict $? "the JSON holds that operation alone, with its bytes by formula"
awk '$1 == "residual" { ok = $5 > 0 && $NF == 4608 } END { exit !ok }' FS=' +' "$work/table" && grep -q '^copy [0-9]' "$work/table"
verdict $? "the table holds a speed, bytes per token and the machine's copy speed"

"$bench" --filter 'swiglu *' --json "$work/swiglu.json" >"$work/swiglu"
verdict $? "SwiGLU measured, forward and backward"
rows=$(sed -nE 's/^swiglu forward R=([0-9]+) F=1536$/\1/p' "$work/list")
# forward reads (R, 2F) and writes (R, F); backward reads both again and writes (R, 2F)
grep -q "\"bytes\": $((3 * rows * 1536 * 2)).0" "$work/swiglu.json" && grep -q "\"bytes\": $((5 * rows * 1536 * 2)).0" "$work/swiglu.json"
verdict $? "and its bytes by formula"

"$bench" --filter 'experts *' --json "$work/experts.json" >"$work/experts"
[ $? -eq 0 ] && [ "$(grep -c '"shape"' "$work/experts.json")" -eq 18 ]
verdict $? "experts measured: the grouped kernel and a library call for each, in three directions, and gathered rows, under two routings"
read -r rows experts chosen fullest < <(sed -nE \
    's/^experts grouped forward R=([0-9]+) C=.* E=([0-9]+) K=([0-9]+) forced balance, fullest of ([0-9]+) rows$/\1 \2 \3 \4/p' "$work/list")
routed=$(sed -nE 's/^experts grouped forward .* routed, fullest of ([0-9]+) rows$/\1/p' "$work/list")
[ "$fullest" -eq $((rows * chosen / experts)) ] && [ "$routed" -gt "$fullest" ]
verdict $? "forced balance gives every expert equally many rows, the router does not"

"$bench" --filter traffic >"$work/traffic"
verdict $? "the traffic of a large step, recorded at small ones"
limit() {   # LINE MOST: what the line says is a number, not more
    sed -nE "s/^ *$1: ([0-9.]+).*/\1/p" "$work/traffic" | awk -v most="$2" '{ ok = $1 > 0 && $1 <= most } END { exit !ok }'
}
limit 'besides matmuls and attention, of a step of one micro-batch' 0.6
verdict $? "GPT-2 124M at 64 x 1024: at most 0.6 MB per token besides matmuls and attention"
limit 'launches of the first micro-step, norm included' 299 && limit 'launches of a later micro-step' 299
verdict $? "and under 300 launches per micro-step"

refused() {   # CODE MESSAGE OPTION...
    "$bench" "${@:3}" >"$work/refused" 2>&1
    [ $? -eq "$1" ] && grep -qF -- "$2" "$work/refused"
    verdict $? "${*:3}: $(head -n 2 "$work/refused")"
}
head -c 99999 /dev/zero >"$work/short.txt"
refused 65 "the files have 99999 bytes" --filter asynchrony --text "$work/short.txt"
refused 74 "$work/missing.txt" --filter asynchrony --text "$work/missing.txt"
refused 64 "--text is of --filter asynchrony" --filter step --text "$work/short.txt"
if [ "${1:-}" = all ]; then
    "$bench" --filter asynchrony --json "$work/late.json" --picture "$work/late.svg" >"$work/late"
    [ $? -eq 0 ] && [ "$(grep -c ' workers: loss [1-9]' "$work/late")" -eq 25 ] &&
        [ "$(grep -c '"mean_lateness"' "$work/late.json")" -eq 25 ] && grep -q 'Nesterov, gate' "$work/late.svg"
    verdict $? "training with late updates: 25 rows, JSON, a picture"
fi

"$bench" --filter 'no such operation' >"$work/none" 2>&1
[ $? -eq 64 ] && grep -q 'matches no benchmark' "$work/none"
verdict $? "a filter that matches nothing is a usage error"
"$bench" --filter 'residual R=* C=768' --json "$work/nowhere/x.json" >"$work/io" 2>&1
[ $? -eq 74 ]
verdict $? "a JSON file that cannot be written is an input/output error"

# In the JSON a case's lines are sorted by name: "breakdown" (with its "seconds"), "bytes" ... "median_s", "name".
value_of() { sed -nE "s/^ +\"$1\": \"?([^\",]+)\"?,?$/\1/p" "$2"; }
if [ "${1:-}" = all ]; then
    "$bench" --json "$work/all.json" >"$work/all" 2>&1
    verdict $? "every benchmark runs"
    [ "$(value_of median_s "$work/all.json" | wc -l)" -eq "$(wc -l <"$work/list")" ]
    verdict $? "every listed case is in the JSON"
    value_of median_s "$work/all.json" | awk '!($1 > 0 && $1 < 3600) { bad = 1 } END { exit bad || NR == 0 }'
    verdict $? "every time is a time"
    # a case moves no more than four times what a copy does: caches are kept out, reads may be faster than copies
    copy=$(value_of copy_bytes_per_s "$work/all.json")
    paste <(value_of bytes "$work/all.json") <(value_of best_s "$work/all.json") |
        awk -v copy="$copy" '$1 / $2 > 4 * copy { bad = 1 } END { exit bad || NR == 0 || copy <= 0 }'
    verdict $? "no case moves more bytes than memory can"
    awk '$1 == "step" { step = $(NF - 6) } $1 == "sum" { if ($2 < 0.75 * step || $2 > 1.25 * step) bad = 1; n++ }
         END { exit bad || n == 0 }' <(sed -E 's/ +/ /g; s/^ //' "$work/all")
    verdict $? "the step's breakdown sums to the step"
fi

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
