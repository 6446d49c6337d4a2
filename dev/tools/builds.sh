#!/bin/sh
# Tells by its exit code whether a program that uses a library compiles and links here:
#   [CXX=g++] dev/tools/builds.sh HEADER STATEMENT FLAGS...
# A header alone proves little: its library may be missing, or of another name.
header=$1 statement=$2
shift 2
out=$(mktemp) || exit 1   # not the null device: who links as root may replace it
trap 'rm -f "$out"' EXIT
printf '#include <%s>\nint main() { %s; }\n' "$header" "$statement" |
    ${CXX:-g++} -x c++ - -x none -o "$out" "$@" >/dev/null 2>&1
