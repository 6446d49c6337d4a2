#!/usr/bin/env bash
# tokenize on ten compressed sources: killed twenty times, several files inflated at once, its shards are the bytes of an
# undisturbed call on one thread; what comes from each source is told; with MEASURE=1 its throughput beside that of one plain
# file. llmc/data/corpus/corpus_cut_test.cpp cuts it between any two batches.
source "$(dirname "$0")/common.sh"
needs "$tokenize"
cd "$work" || exit 70
for tool in gzip zstd; do
    command -v $tool >/dev/null || { echo "SKIPPED compressed sources: no $tool here"; echo "0 passed, 0 failed"; exit 0; }
done

# ten sources of some MB each, half of them .gz and half .zst, lines of JSON
for i in 0 1 2 3 4 5 6 7 8 9; do
    awk -v s=$i 'BEGIN { srand(s); for (l = 0; l < 30000; l++) {
        printf "{\"text\": \"source %d line %d:", s, l % 20000
        for (w = rand() * 12; w > 0; w--) printf " word%d", rand() * 3000
        print "\"}" } }' >source$i.jsonl
done
cat source?.jsonl >whole.jsonl
gzip -k source[01234].jsonl && zstd -q source[56789].jsonl
sources=(source[01234].jsonl.gz source[56789].jsonl.zst)
prepare=("$tokenize" --tokenizer bytes --val-fraction 0.05 --dedup --shard-tokens 1000000 --save-every 0)

expect 0 "training and" "${prepare[@]}" -q --threads 1 --output once "${sources[@]}"
[ "$(grep -cE '^  source[0-9]\.jsonl\.(gz|zst): [0-9]+ documents, [0-9]+ tokens, [0-9]+ bytes$' out)" = 10 ]
verdict $? "documents, tokens and bytes of each source: $(grep -m 1 '^  source' out)"
[ "$(sed -nE 's/^  source.*: ([0-9]+) documents, ([0-9]+) tokens.*/\1 \2/p' out | awk '{ d += $1; t += $2 } END { print d, t }')" = \
    "$(sed -nE 's/^once: ([0-9]+) training and ([0-9]+) validation tokens of ([0-9]+) documents.*/\3 \1 \2/p' out | awk '{ print $1, $2 + $3 }')" ]
verdict $? "they add up: $(head -n 2 out)"

# killed wherever it is, twenty times
kills=0 went_on=0
start=$(date +%s%N)
"${prepare[@]}" -q --threads 4 --output timed "${sources[@]}" >/dev/null
whole_ms=$((($(date +%s%N) - start) / 1000000))
for _ in $(seq 200); do
    [ $kills -lt 20 ] || break
    "${prepare[@]}" -q --threads 4 --output cut "${sources[@]}" >told 2>&1 &
    sleep "$(awk -v ms=$((whole_ms / 8)) -v r=$RANDOM 'BEGIN { print (10 + r / 32767 * ms) / 1000 }')"
    kill -9 $! 2>/dev/null && kills=$((kills + 1))
    wait $! 2>/dev/null
    if grep -q "training and" told; then rm -r cut; fi   # it was done: once more from the begin
done
expect 0 "training and" "${prepare[@]}" -q --threads 4 --output cut "${sources[@]}"
grep -q "went on after" out && went_on=1
[ $kills -ge 20 ] && diff -r once cut >differs 2>&1
verdict $? "killed $kills times, the shards are the same bytes: $(head -n 3 differs)"
echo "killed $kills times; the last call went on: $went_on"

# what it costs that they are ten and compressed; told, not judged: two cores of a busy machine
if [ -n "${MEASURE:-}" ]; then
    rm -r once cut timed
    for i in 0 1 2 3 4 5 6 7 8 9; do
        for _ in 1 2 3 4 5 6 7 8; do cat source$i.jsonl; done >large$i.jsonl
    done
    cat large?.jsonl >whole.jsonl
    gzip -k large?.jsonl && zstd -q large?.jsonl
    "$tokenize" --train 4000 -q --threads 2 --output words whole.jsonl --max-bytes 8MB >/dev/null
    for tokenizer in bytes words; do
        for round in 1 2 3 4 5; do
            for inputs in whole.jsonl 'large?.jsonl.gz' 'large?.jsonl.zst'; do
                start=$(date +%s%N)
                # shellcheck disable=SC2086
                "$tokenize" --tokenizer $tokenizer -q --threads 2 --overwrite --output measured $inputs >/dev/null
                echo "$tokenizer ${inputs##*.} $round $(($(stat -c %s whole.jsonl) / (($(date +%s%N) - start) / 1000)))"
            done
        done
    done >speeds
    awk '{ of[$1, $2, $3] = $4 } END { for (t in of) { split(t, k, SUBSEP); if (k[2] != "jsonl")
        print k[1], k[2], "to one plain file:", of[t] / of[k[1], "jsonl", k[3]], of[t] " MB/s" } }' speeds | sort -k1,2 -k7n
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
