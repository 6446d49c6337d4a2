#!/usr/bin/env bash
# Checks that neither build sees the other's headers, and that the stand-ins say what CUDA's say.
#
#   1. every header in llmc/cuda_on_cpu/include refuses nvcc at once;
#   2. no CPU source depends on a header of the CUDA toolkit. -MMD leaves out headers in system folders, where a
#      distribution or an administrator may have put the toolkit's, so the dependencies are asked for with -M;
#   3. no object of a CUDA build depends on llmc/cuda_on_cpu;
#   4. where the toolkit is installed: values, names and texts in driver_types.h are the toolkit's;
#   5. host code that divides loops over the cores is compiled with -O3. With -Og library attention took three times as
#      long, and no test of what it computes can show that;
#   6. the benchmarks compile.
source "$(dirname "$0")/common.sh"
CXX=${CXX:-g++}
# ---- 1. stand-ins refuse nvcc
while read -r header; do
    message=$("$CXX" -D__CUDACC__ -x c++ -std=c++20 -Illmc/cuda_on_cpu/include -I. -fsyntax-only "$header" 2>&1 | grep -m1 'error')
    case $message in
        *'#error'*) ;;
        *) echo "$header: under nvcc the first error is not its #error but: ${message:-none}" ;;
    esac
done < <(find llmc/cuda_on_cpu/include -type f) >"$work/refusal"
nothing_wrong "stand-in headers refuse nvcc" "$(<"$work/refusal")"

# ---- 2. CPU sources see no header of the toolkit. One file that includes every system header stands for all of them.
third_party=$([ -d third_party/include ] && echo "-isystem third_party/include")
mpi=$(for d in /usr/lib/x86_64-linux-gnu/openmpi/include; do [ -d $d ] && echo "-isystem $d"; done)
find llmc dev/tools dev/test *.cu \( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h' \) ! -name '*_cudnn*' -print0 |
    xargs -0 grep -hoE '^ *# *include *(<[^>]+>|"[^"]+")' | grep -oE '[<"].*' | sort -u |
    while read -r header; do [ -e "${header//\"/}" ] || echo "$header"; done >"$work/system"
while read -r header; do printf '#if __has_include(%s)\n#include %s\n#endif\n' "$header" "$header"; done <"$work/system" >"$work/all.cpp"
"$CXX" -std=c++20 -DPRECISION_BF16 -Illmc/cuda_on_cpu/include -I. $third_party $mpi -M "$work/all.cpp" >"$work/cpu.d" 2>"$work/cpu.err"
grep -q cuda_runtime.h "$work/cpu.d" || echo "no dependencies: $(head -n 3 "$work/cpu.err")" >"$work/unreadable"
grep -h 'fatal error' "$work/cpu.err" >>"$work/unreadable"
nothing_wrong "dependencies of the CPU sources can be listed" "$(<"$work/unreadable")"
tr -s ' \\' '\n' <"$work/cpu.d" | grep '^/' | sort -u | while read -r file; do
    real=$(readlink -f "$file")
    case $real in
        */cuda/* | */cuda-[0-9]* | */nvidia/*) echo "$file ($real)" ;;
    esac
done >"$work/toolkit"
nothing_wrong "CPU sources see no header of the CUDA toolkit" "$(<"$work/toolkit")"

# ---- 3. CUDA objects see no stand-in
mapfile -t cuda_dependencies < <(find build -path 'build/cuda*/*' -name '*.d' 2>/dev/null)
if [ ${#cuda_dependencies[@]} -gt 0 ]; then
    grep -l 'llmc/cuda_on_cpu/' "${cuda_dependencies[@]}" >"$work/standin"
    nothing_wrong "CUDA objects see no stand-in header" "$(<"$work/standin")"
else
    echo "SKIPPED dependencies of the CUDA build: there is none below build/ (make cuda-compile)"
fi

# ---- 4. the same values and texts as the toolkit
toolkit=
for folder in "${CUDA_HOME:-}" "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /none)")")")" /usr/local/cuda; do
    [ -n "$folder" ] && [ -e "$folder/include/driver_types.h" ] && toolkit=$folder && break
done
types=llmc/cuda_on_cpu/include/driver_types.h
if [ -n "$toolkit" ]; then
    {
        echo '#include <cuda_runtime_api.h>'
        echo '#include <cstdio>'
        echo '#include <cstring>'
        grep -E '^#define cuda[A-Za-z]+ 0x' "$types" | awk '{print "static_assert(" $2 " == " $3 ", \"" $2 "\");"}'
        grep -E '^ +cuda[A-Za-z0-9]+ = [0-9]+' "$types" | sed -E 's/^ +(cuda[A-Za-z0-9]+) = ([0-9]+).*/static_assert(\1 == \2, "\1");/'
        echo 'static int differences;'
        echo 'void compare(int value, int expected, const char* name, const char* text) {'
        echo '    auto error = static_cast<cudaError_t>(value);'
        echo '    if (value == expected && !std::strcmp(cudaGetErrorName(error), name) && !std::strcmp(cudaGetErrorString(error), text)) return;'
        echo '    differences++; std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));'
        echo '}'
        echo 'int main() {'
        grep -E '^    X\(cuda' "$types" | sed -E 's/^    X\((\w+), ([0-9]+), (".*")\).*/    compare(\1, \2, "\1", \3);/'
        echo '    return differences != 0;'
        echo '}'
    } >"$work/compare.cpp"
    library=$(find -L "$toolkit" -name 'libcudart_static.a' 2>/dev/null | head -n 1)
    if "$CXX" -std=c++20 -isystem "$toolkit/include" "$work/compare.cpp" ${library:-"-lcudart"} -ldl -lrt -pthread \
        -o "$work/compare" >"$work/values" 2>&1; then
        "$work/compare" >"$work/values" 2>&1
    fi
    nothing_wrong "values and texts are those of $toolkit" "$(<"$work/values")"
    echo "compared with $toolkit: $(grep -c 'static_assert' "$work/compare.cpp") values, $(grep -c ' compare(cuda' "$work/compare.cpp") errors"
else
    echo "SKIPPED comparison with the CUDA toolkit: it is not installed"
fi

# ---- 5. loops that are divided over the cores are optimised
grep -rlE 'parallel_for' llmc --include='*.cpp' --include='*.cu' | grep -v '_test\.' | sort >"$work/parallel"
make --no-print-directory -nB DEVICE=cpu $(sed 's|.*|build/cpu/obj/&.o|' "$work/parallel") >"$work/commands" 2>&1
while read -r source; do
    grep -F -- "-o build/cpu/obj/$source.o" "$work/commands" | grep -q -- ' -O3 ' || echo "$source"
done <"$work/parallel" >"$work/unoptimised"
[ -s "$work/parallel" ] || echo "no source calls parallel_for" >"$work/unoptimised"
nothing_wrong "what runs on all cores is compiled with -O3" "$(<"$work/unoptimised")"

# ---- 6. the benchmarks, which no other check of make test compiles, still fit what they call
find dev/bench -maxdepth 1 \( -name '*.cu' -o -name '*.cpp' \) -print0 |
    xargs -0 -P "$(nproc)" -n 2 "$CXX" -std=c++20 -x c++ -DPRECISION_BF16 -Illmc/cuda_on_cpu/include -I. $third_party $mpi \
        -fsyntax-only 2>"$work/bench.err"
grep -h 'error' "$work/bench.err" >"$work/misfits"
nothing_wrong "benchmarks fit what they call" "$(<"$work/misfits")"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
