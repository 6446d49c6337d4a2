#!/usr/bin/env bash
# Prints the sources that include a header of this project, by whatever way: `dev/tools/includers.sh llmc/model/precision.h`.
cd "$(dirname "$0")/../.." || exit
grep -rE '^#include "' --include='*.h' --include='*.cuh' --include='*.cpp' --include='*.cu' llmc dev ./*.cu | sed 's|^\./||' |
    awk -F'[:"]' -v target="$1" '
        { includes[$1] = includes[$1] " " $3 }
        function reaches(file,   names, count, i) {
            if (file in known) return known[file]
            known[file] = file == target
            count = split(includes[file], names, " ")
            for (i = 1; i <= count && !known[file]; i++) known[file] = reaches(names[i])
            return known[file]
        }
        END { for (file in includes) if (file ~ /\.(cpp|cu)$/ && reaches(file)) print file }' | sort
