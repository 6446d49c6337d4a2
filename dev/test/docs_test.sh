#!/usr/bin/env bash
# README.md and docs/ against the program: every exit code and every quoted message is the program's, every option exists,
# every file that is named is there, every walk through the code is made of calls that the code makes, every link leads
# somewhere, and every page can be found from the README.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
pages=(README.md docs/*.md)
page=docs/troubleshooting.md

# ---- exit codes: those of ErrorKind, each with a row of its own, and no others
codes=$(printf '0\n'; sed -nE '/^enum class ErrorKind/,/^};/s/^ *[a-z_]+ = ([0-9]+),.*/\1/p' llmc/base/error.h)
[ "$(wc -w <<<"$codes")" -ge 7 ]
verdict $? "only these exit codes were found in llmc/base/error.h: $codes"
rows=$(sed -nE 's/^\| ([0-9]+) \|.*/\1/p' "$page")
[ "$(sort -n <<<"$codes")" = "$(sort -n <<<"$rows")" ]
verdict $? "$page has rows of the exit codes $(tr '\n' ' ' <<<"$rows"), the program has $(tr '\n' ' ' <<<"$codes")"

# ---- messages: what the first column of a table under "| the message |" quotes stands in a literal of the sources, which
# may go on on the next line
find llmc dev/tools ./*.cu -regex '.*\.\(cpp\|cu\|cuh\|h\)' ! -name '*_test.*' ! -name '*_testing.*' -exec cat {} + | tr '\n' ' ' |
    sed -E "s/'\"'//g"'; s/([^\\])" *"/\1/g' | grep -aoE '"([^"\\]|\\.)*"' >"$work/sources"
awk '/^\| the message \|/ { inside = 1; next } !/^\|/ { inside = 0 } inside && !/^\|---/ { print }' "$page" |
    awk -F'|' '{ print $2 }' | grep -oE '`[^`]+`' | tr -d '`' >"$work/messages"
count=0
while IFS= read -r message; do
    grep -qF -- "$message" "$work/sources"
    verdict $? "$page quotes \`$message\`, which the program does not say"
    count=$((count + 1))
done <"$work/messages"
[ "$count" -ge 50 ]
verdict $? "only $count messages were found in $page"

# ---- options: of the programs and scripts here, or of others' programs (listed)
{
    "$train_gpt" --help
    "$train_gpt" --help | sed -nE 's/^  train_gpt ([a-z]+) --help.*/\1/p' | while read -r verb; do "$train_gpt" "$verb" --help; done
    "$tokenize" --help
    sed -nE 's/^ *(-[a-z-]+\|)?(--[a-z-]+)\).*/\2/p; s/^ *(--[a-z-]+)\|?.*\).*/\1/p' data/*.sh scripts/*.sh dev/bench/*.sh
    grep -hE 'add_argument|"--[a-z-]+"' data/*.py dev/reference/*.py dev/bench/*.py dev/bench/*.cpp dev/tools/*.cpp
} | grep -oE -e '--[a-z][a-z0-9-]*' | sort -u >"$work/known"
others=" --bind-to --mca --nodes --signal --no-skip --expt-relaxed-constexpr --logdir "   # mpirun's, sbatch's, doctest's, nvcc's, tensorboard's
grep -noE -e '(^|[^a-zA-Z0-9-])--[a-z][a-z0-9-]*' "${pages[@]}" | sed -E 's/^([^:]*:[0-9]+):.*(--[a-z].*)$/\1:\2/' | sort -u >"$work/options"
count=0
while IFS=: read -r file line option; do
    grep -qxF -- "$option" "$work/known" || [[ $others == *" $option "* ]]
    verdict $? "$file:$line: no program has the option $option"
    count=$((count + 1))
done <"$work/options"
[ "$count" -ge 200 ]
verdict $? "only $count options were found in the pages"

# ---- code that a page shows, line by line
find llmc dev -regex '.*\.\(cpp\|cu\|cuh\|h\)' -exec cat {} + >"$work/code"
count=0
while IFS= read -r line; do
    grep -qF -- "$line" "$work/code"
    verdict $? "a page shows code that is not there: $line"
    count=$((count + 1))
done < <(awk '/^```/ { inside = /^```cpp/; next } inside && NF' "${pages[@]}")
[ "$count" -ge 20 ]
verdict $? "only $count lines of code were found in the pages"

# ---- tests that are named, by doctest's patterns: "certificate: all*"
find llmc dev/bench dev/test ./*.cu -name '*_test.*' -o -name '*_testing.*' -o -name 'test_gpt.cu' | xargs cat | tr '\n' ' ' |
    grep -oE 'TEST_CASE(_TEMPLATE)?\( *"[^"]*"' | sed -E 's/^[^"]*"//; s/"$//' >"$work/cases"
count=0
while IFS= read -r pattern; do
    while IFS= read -r name; do
        # shellcheck disable=SC2053   # a pattern
        [[ $name == $pattern ]] && break
    done <"$work/cases"
    verdict $? "docs/testing.md: no test is named $pattern"
    count=$((count + 1))
done < <(tr -s '\n ' ' ' <docs/testing.md | grep -oE '`[a-z][a-z ]*(: ?[^`]*)?\*`' | tr -d '`' | sort -u)
[ "$count" -ge 25 ]
verdict $? "only $count patterns of tests were found in docs/testing.md"

# ---- parts of make test-long
parts=$(dev/test/run.sh long help | awk 'NR > 1 { print $1 }' | sort -u)
[ "$(wc -w <<<"$parts")" -ge 15 ]
verdict $? "only these parts were found by make test-long PART=help: $parts"
for part in $parts; do
    grep -qF "\`$part\`" docs/testing.md
    verdict $? "docs/testing.md does not name the part $part of make test-long"
done

# ---- files of this repository
grep -noE '(^|[^a-zA-Z0-9_./~-])((llmc|dev|docs|scripts|\.ci|\.github)/|data/[a-z0-9_]+\.(sh|py))[a-zA-Z0-9_./*-]*' "${pages[@]}" docs/*.svg |
    sed -E 's/^([^:]*:[0-9]+):[^a-zA-Z.]?/\1:/; s/[.]+$//' | grep -vE 'NAME|ipynb$' | sort -u >"$work/files"
count=0
while IFS=: read -r file line path; do
    compgen -G "$path" >/dev/null
    verdict $? "$file:$line: there is no $path"
    count=$((count + 1))
done <"$work/files"
[ "$count" -ge 80 ]
verdict $? "only $count files were found in the pages"

# ---- members that are named: Class::member stands in the definition of that class
awk '/^(class|struct) / && !/;$/ { class = $2; gsub(/[^A-Za-z0-9_].*/, "", class) }
    /^}/ { class = "" }
    class != "" {
        sub(/\/\/.*/, "")
        while (match($0, /[A-Za-z_][A-Za-z0-9_]*/)) {
            print class "::" substr($0, RSTART, RLENGTH)
            $0 = substr($0, RSTART + RLENGTH)
        }
    }' "$work/code" | sort -u >"$work/members"
grep -ohE '\b[A-Z][A-Za-z]+::[A-Za-z_]+' "${pages[@]}" | sort -u >"$work/named"
nothing_wrong "every Class::member that a page names is in the class" "$(comm -13 "$work/members" "$work/named")"
[ "$(wc -l <"$work/named")" -ge 80 ]
verdict $? "only $(wc -l <"$work/named") members were found in the pages"

# ---- walks through the code: a tree of calls in a ```calls block. A line has a function, and the file of its definition where
# that is not its caller's; the definition of the caller calls it.
definitions() {   # NAME FILE: all functions of that name in the file, from behind the name on, without comments
    awk -v name="$1" '
        { sub(/ *\/\/.*/, "") }
        !inside && (at = match(" " $0, "[^A-Za-z0-9_.>:]" name "\\(")) && substr($0, 1, at - 1) !~ /[(=;,]|return|else/ {
            inside = 1; open = 0; text = ""
            match($0, /^ */)
            end = substr($0, 1, RLENGTH) "}"
            $0 = substr($0, at + length(name))
        }
        inside {
            text = text $0 "\n"
            if (!open && /;$/) inside = 0   # a declaration or a call
            if (open ? index($0, end) == 1 : /}$/) { printf "%s", text; inside = 0 }
            if (/\{$/) open = 1
        }' "$2"
}
count=0 names=("") files=("") bodies=("")
while IFS= read -r line; do
    read -r name file _ <<<"$line"
    indent=${line%%[! ]*} depth=$((${#indent} / 2 + 1)) caller=$((${#indent} / 2))
    [ -f "$file" ] || file=${files[caller]}
    defined=$name
    [[ $file == *.h || $file == *.cuh ]] && defined=${name##*::}
    bodies[depth]=$(definitions "$defined" "$file") names[depth]=$name files[depth]=$file
    [ -n "${bodies[depth]}" ]
    verdict $? "docs/architecture.md: $file does not define $name"
    call="[^A-Za-z0-9_]${name##*::}([(<]| [a-z_]+[(])"   # f(..), f<..>, or of a constructor: Class object(..)
    [[ $caller -eq 0 || ${bodies[caller]} =~ $call ]]
    verdict $? "docs/architecture.md: ${names[caller]} (${files[caller]}) does not call $name"
    count=$((count + 1))
done < <(awk '/^```/ { inside = /^```calls/; next } inside' docs/architecture.md)
[ "$count" -ge 80 ]
verdict $? "only $count calls were found in docs/architecture.md"

# ---- links, with their anchors: a heading in small letters without punctuation, blanks as dashes
anchors() { sed -nE 's/^#+ +//p' "$1" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-'; }
count=0
while IFS=: read -r file line target; do
    case $target in http*) continue ;; esac
    where=${target%%#*} anchor=
    [[ $target == *'#'* ]] && anchor=${target#*#}
    to=$file
    [ -z "$where" ] || to=$(dirname "$file")/$where
    [ -e "$to" ] && { [ -z "$anchor" ] || anchors "$to" | has -xF -- "$anchor"; }
    verdict $? "$file:$line: the link $target leads nowhere"
    count=$((count + 1))
done < <(grep -noE '\]\([^) ]+\)' "${pages[@]}" | sed -E 's/\]\(//; s/\)$//')
[ "$count" -ge 20 ]
verdict $? "only $count links were found in the pages"
for named in docs/*; do
    grep -qF "$named" README.md || [[ $named != *.md ]]
    verdict $? "README.md does not name $named"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
