#!/usr/bin/env bash
# docs/options.md from the program's own --help: `dev/tools/options_page.sh [TRAIN_GPT] >docs/options.md`.
set -euo pipefail
cd "$(dirname "$0")/../.."
cat <<'END'
# Options of train_gpt

Every option, its default and what it does: `dev/tools/options_page.sh >docs/options.md` writes this page from `--help`,
and a test compares the two. One-letter names are llm.c's; of its two-letter ones `-nk -nm -ge -sl -sg -lg -pn -pr -pg
-pi -pf -ps` and of `-h` (with a value) the meaning is kept too. `--config FILE` reads lines of `name = value`, which
`--print-config` writes; the command line wins. The verbs take some of these, which mean the same to them, and those
listed at the end; see [models.md](models.md).
END
train_gpt=${1:-./train_gpt}

# A line of help is "  NAMES [TYPE[=DEFAULT]]  words", or the words begin on the next line; further lines are indented.
rows() {   # HEADINGS (0 or 1) VERB
    "$train_gpt" "${@:2}" --help | awk -v headings="$1" '
    function flush() {
        if (names != "") printf "| %s | %s | %s |\n", names, value, words
        names = ""
    }
    function text(s) { gsub(/\|/, "\\|", s); gsub(/\*/, "\\*", s); return s }
    /^Besides training:$/ { exit }
    /^[A-Z].*:$/ {
        flush()
        sub(/:$/, "")
        if (headings) printf "\n## %s\n\n| option | default | what it does |\n|---|---|---|\n", $0
        next
    }
    /^  -/ {
        flush()
        line = substr($0, 3)
        at = match(line, /  +/)
        head = at ? substr(line, 1, at - 1) : line
        words = at ? text(substr(line, at + RLENGTH)) : ""
        split(head, part, " ")
        split(part[1], name, ",")
        names = name[2] == "" ? "`" part[1] "`" : "`" name[2] "`, `" name[1] "`"
        if (name[1] ~ /^--/ && name[2] != "") names = "`" name[1] "`, `" name[2] "`"
        type = substr(head, length(part[1]) + 2)
        at = index(type, "=")
        value = at && substr(type, at + 1) != "" ? "`" substr(type, at + 1) "`" : ""
        kinds = at ? substr(type, 1, at - 1) : type
        if (at = index(value, " ")) {   # names that fill their column have one blank behind
            words = text(substr(value, at + 1, length(value) - at - 1)) (words == "" ? "" : " ") words
            value = substr(value, 1, at - 1) "`"
        }
        gsub(/\|/, "\\|", value)
        if (kinds ~ /\|/ && kinds != "0|1") words = "`" text(kinds) "`: " words
        next
    }
    /^   +[^ ]/ && names != "" { sub(/^ +/, ""); words = words (words == "" || words ~ /: $/ ? "" : " ") text($0) }
    END { flush() }'
}
training=$(rows 1)
echo "$training"
while read -r _ verb _; do
    own=$(rows 0 "$verb" | grep -vxF -e "$training") || continue
    printf '\n## `train_gpt %s`: what it alone takes, or takes otherwise\n\n| option | default | what it does |\n|---|---|---|\n' "$verb"
    echo "$own"
done < <("$train_gpt" --help | grep -E '^  train_gpt [a-z]+ --help$')
