#!/usr/bin/env bash
# The benchmarks' program: what it lists, measures and writes. (Speeds are not judged: other work may share the machine.)
set -uo pipefail
cd "$(dirname "$0")/../.."
bench=build/${DEVICE:-cpu}-bf16/bench
[ -x "$bench" ] || { echo "no $bench (make PRECISION=bf16 $bench)"; exit 70; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

verdict() {   # STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi
}

"$bench" --list >"$work/list"
missing=0
for name in adamw 'global norm' 'own attention forward' 'library attention backward' 'bias gradient' classifier \
    'encoder backward' 'gelu forward' 'layernorm backward' 'matmul weight gradient' 'residual + layernorm' step; do
    grep -q "^$name" "$work/list" || { echo "not in --list: $name"; missing=1; }
done
verdict $missing "--list names every kind of operation"
for size in 124M 350M 774M 1558M; do [ "$(grep -c "^matmul.* $size " "$work/list")" -eq 15 ] || missing=1; done
verdict $missing "--list has five layers of every model, each in three directions"

"$bench" --filter 'residual R=* C=768' --json "$work/residual.json" >"$work/table"
verdict $? "one operation measured"
# R=4096, C=768: two tensors of bf16 are read, one is written
grep -q '"bytes": 18874368.0' "$work/residual.json" && [ "$(grep -c '"shape"' "$work/residual.json")" -eq 1 ]
verdict $? "the JSON holds that operation alone, with its bytes by formula"
awk '$1 == "residual" { ok = $5 > 0 && $NF == 4608 } END { exit !ok }' FS=' +' "$work/table" && grep -q '^copy [0-9]' "$work/table"
verdict $? "the table holds a speed, bytes per token and the machine's copy speed"

"$bench" --filter 'no such operation' >"$work/none" 2>&1
[ $? -eq 64 ] && grep -q 'matches no benchmark' "$work/none"
verdict $? "a filter that matches nothing is a usage error"
"$bench" --filter 'residual R=* C=768' --json "$work/nowhere/x.json" >"$work/io" 2>&1
[ $? -eq 74 ]
verdict $? "a JSON file that cannot be written is an input/output error"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
