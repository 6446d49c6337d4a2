#!/usr/bin/env bash
# Prints the names of the libraries whose use compiles and links here (dev/tools/builds.sh):
#   [CXX=g++] dev/tools/found.sh KEPT NAME HEADER STATEMENT FLAGS [NAME HEADER STATEMENT FLAGS]...
# The answer is kept in the file KEPT with the state of all that it depends on. It is given again without building anything
# while that state is the same: these arguments, the compiler with its version and settings, and the times of the folders
# in which it looks for headers and libraries, and of the files there that these libraries are.
set -u
kept=$1
shift
read -ra compiler <<<"${CXX:-g++}"

flags=() sought=()   # of all libraries together; files that may lie in a folder, and folders of headers
for ((i = 1; i <= $#; i += 4)); do
    header=${*:i+1:1}
    sought+=("$header")
    [[ $header != */* ]] || sought+=("${header%/*}")
    before=
    for flag in ${*:i+3:1}; do
        flags+=("$flag")
        [[ $flag != -l* ]] || sought+=("lib${flag#-l}.so" "lib${flag#-l}.a")
        [ "$before" != -include ] || sought+=("$flag")
        before=$flag
    done
done

state() {
    local settings folder file files=()
    # the compiler tells its version and where it looks, flags and environment heeded
    settings=$("${compiler[@]}" -v -E -x c++ /dev/null "${flags[@]}" 2>&1 >/dev/null
        "${compiler[@]}" -print-search-dirs 2>&1
        "$("${compiler[@]}" -print-prog-name=ld 2>/dev/null)" --verbose 2>/dev/null | grep -o 'SEARCH_DIR("[^"]*")')
    printf '%s\n' "${CXX:-g++}" "$@" "${LIBRARY_PATH:-}" "$settings"
    for file in "${compiler[@]}"; do files+=($(type -aP "$file")); done
    while read -r folder; do
        files+=("$folder" "${sought[@]/#/$folder/}")
    done < <({ sed -n '/search starts here:/,/^End of search list/s/^ //p; s/^libraries: =//p
        s/SEARCH_DIR("=\{0,1\}\(.*\)")/\1/p' <<<"$settings" && printf '%s\n' "${LIBRARY_PATH:-}" "${flags[@]#-L}"; } |
        tr : '\n' | grep -v '^-' | grep . | xargs -r -d '\n' realpath -m | sort -u)
    stat -L -c '%n %i %s %.Y' dev/tools/*.sh "${files[@]}" 2>/dev/null
}
now=$(state "$@")
if [ -r "$kept" ] && { read -r answer && [ "$(cat)" = "$now" ]; } <"$kept"; then
    echo "$answer"
    exit
fi

answer=$(while [ $# -gt 0 ]; do
    # shellcheck disable=SC2086   # words
    { dev/tools/builds.sh "$2" "$3" $4 && echo "$1"; } &
    shift 4
done | sort | xargs)
echo "$answer"
# an answer of a machine on which nothing builds (a full disk, no memory) is not kept
dev/tools/builds.sh cstddef '' || exit 0
{ mkdir -p "$(dirname "$kept")" && printf '%s\n' "$answer" "$now" >"$kept.$$" && mv -f "$kept.$$" "$kept"; } 2>/dev/null ||
    rm -f "$kept.$$"
