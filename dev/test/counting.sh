# How many cases a check of run.sh counts as, by its log and exit status.
#
# A log that tells of numbers, doctest's of test cases or a script's "N passed, N failed", counts as these. Any other is one
# case, which has passed where the status is 0, unless all that it says is that it skips. A status that is not 0 is a failure
# whatever the log tells; so are numbers that are all 0 in a log that skips nothing: a filter that no case matches, a script
# that tested nothing.

# Skips of a log: lines of scripts, and messages of doctest.
skips_of() { { grep -aoE '(^|: )SKIPPED .*' "$1" || true; } | sed 's/^: //' | sort -u; }

only_skips() { grep -aqE '^SKIPPED ' "$1" && ! grep -aqvE '^(SKIPPED .*)?$' "$1"; }

count() {   # LOG STATUS: sets p and f to the passed and failed cases
    local log=$1 status=$2 line has_numbers= empty=0 before
    p=0 f=0
    while read -r line; do
        has_numbers=1 before=$((p + f))
        p=$((p + $(sed -E 's/.*\| +([0-9]+) passed.*/\1/' <<<"$line")))
        f=$((f + $(sed -E 's/.*\| +([0-9]+) failed.*/\1/' <<<"$line")))
        [ $((p + f)) -gt "$before" ] || empty=$((empty + 1))
    done < <(sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -aE '^\[doctest\] test cases:')
    while read -r line; do
        has_numbers=1 before=$((p + f))
        p=$((p + ${line%% passed*}))
        f=$((f + $(sed -E 's/.* ([0-9]+) failed.*/\1/' <<<"$line")))
        [ $((p + f)) -gt "$before" ] || empty=$((empty + 1))
    done < <(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$log")
    [ -n "$(skips_of "$log")" ] || f=$((f + empty))
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$status" -eq 0 ] && [ -z "$has_numbers" ] && ! only_skips "$log"; then p=1; fi
}
