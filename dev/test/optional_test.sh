#!/usr/bin/env bash
# Builds where something optional is hidden: MPI, PCRE2, ICU, zlib, zstd and cuDNN's headers, the header and the library in turn; and
# what is said where something needed is missing. `optional_test.sh long` also tries start-up in the build without MPI.
#
# A folder that the compiler looks into first hides a package: a header that stops, a library that is none. The builds
# are made in the folders of the others, so that only the objects concerned are compiled, and made again at the end.
# Also that what was found is kept from build to build, and found anew when something changes.
# Alone: it builds.
. "$(dirname "$0")/common.sh"
train_gpt=build/cpu-bf16/train_gpt tokenize=build/cpu/tokenize   # as make names them
needs "$train_gpt" "$tokenize"
built() { make --no-print-directory -j"$(nproc)" DEVICE=cpu PRECISION=bf16 "$@"; }
without() {   # HEADER|LIBRARY NAME: sets hidden to compiler flags that hide it
    local folder="$work/hidden-${2##*/}"
    mkdir -p "$folder/$(dirname "$2")"
    if [ "$1" = header ]; then echo "#error $2 is hidden" >"$folder/$2"; else echo "hidden" >"$folder/lib$2.so"; fi
    hidden="-I$folder -L$folder"
}
links() { readelf -d "$1" | has "NEEDED.*lib$2[-.]"; }   # PROGRAM LIBRARY: itself, not by another library
programs=("$train_gpt" "$tokenize" build/cpu/bigram build/cpu/loss_curve)

# a tokenizer whose pattern is none of the known ones
echo 'some text, some more text' >"$work/text.txt"
"$tokenize" --train 260 --split cl100k --output "$work/tokenizer" "$work/text.txt" >/dev/null
sed -i 's/{1,3}/{1,2}/' "$work/tokenizer/tokenizer.json"
"$tokenize" --train 260 --split qwen --output "$work/qwen" "$work/text.txt" >/dev/null
printf 'cafe\314\201' >"$work/decomposed.txt"
normalised=(--tokenizer "$work/qwen" --overwrite --output "$work/own" "$work/decomposed.txt")
gzip -c "$work/text.txt" >"$work/text.txt.gz"; printf '\x28\xb5\x2f\xfd' >"$work/text.txt.zst"   # never read
own_pattern=(--tokenizer "$work/tokenizer/tokenizer.json" --output "$work/own" "$work/text.txt")

hide() {   # header|library FILE PACKAGE LIBRARY
    local hidden
    without "$1" "$2"
    built CXX="g++ $hidden" "${programs[@]}" >"$work/log" 2>&1
    verdict $? "a build without $3's $1: $(tail -n 3 "$work/log")"
    ! links "$train_gpt" "$4" && ! links "$tokenize" "$4"
    verdict $? "without $3's $1 nothing links it"
    built CXX="g++ $hidden" "USE_$3=1" "${programs[@]}" >"$work/log" 2>&1
    [ $? -eq 2 ] && grep -q "USE_$3=1, but nothing that uses it builds here: install [a-z0-9]*-dev" "$work/log"
    verdict $? "USE_$3=1 without its $1 names the package: $(tail -n 1 "$work/log")"
}
found() {   # NAME [DEVICE]
    [ "$(make --no-print-directory -pn DEVICE="${2:-cpu}" all 2>/dev/null | sed -nE "s/^$1_FOUND := //p")" = 1 ]
}

if found PCRE2; then
    for kind in header:pcre2.h library:pcre2-8; do
        hide "${kind%%:*}" "${kind#*:}" PCRE2 pcre2
        "$tokenize" "${own_pattern[@]}" >"$work/log" 2>&1
        [ $? -eq 64 ] && grep -q "Install libpcre2-dev and build again" "$work/log"
        verdict $? "a pattern of one's own without PCRE2 names the package: $(cat "$work/log")"
    done
else
    echo "SKIPPED hiding PCRE2: it is not here"
fi
if found ICU; then
    for kind in header:unicode/normalizer2.h library:icuuc; do
        hide "${kind%%:*}" "${kind#*:}" ICU icuuc
        "$tokenize" "${normalised[@]}" >"$work/log" 2>&1
        [ $? -eq 64 ] && grep -q "Install libicu-dev and build again" "$work/log"
        verdict $? "normal form C without ICU names the package: $(cat "$work/log")"
    done
else
    echo "SKIPPED hiding ICU: it is not here"
fi
for kind in ZLIB:zlib.h:z:zlib1g-dev:gz ZSTD:zstd.h:zstd:libzstd-dev:zst; do
    IFS=: read -r name header library package suffix <<<"$kind"
    if ! found "$name"; then echo "SKIPPED hiding $name: it is not here" && continue; fi
    for what in "header $header" "library $library"; do
        hide $what "$name" "$library"
        "$tokenize" --tokenizer bytes --overwrite --output "$work/own" "$work/text.txt.$suffix" >"$work/log" 2>&1
        [ $? -eq 64 ] && grep -q "Install $package and build again" "$work/log"
        verdict $? ".$suffix without $name names the package: $(cat "$work/log")"
    done
done
if found MPI; then
    for kind in header:mpi.h library:mpi; do hide "${kind%%:*}" "${kind#*:}" MPI mpi; done
    if [ "${1:-}" = long ]; then
        dev/test/startup_test.sh
        verdict $? "start-up by tcp and fs in a build without MPI"
    fi
else
    echo "SKIPPED hiding MPI: it is not here"
fi
built "${programs[@]}" >"$work/log" 2>&1
verdict $? "the build with all that is here: $(tail -n 3 "$work/log")"
if found MPI; then links "$train_gpt" mpi; verdict $? "with MPI it is linked"; fi
if found PCRE2; then
    "$tokenize" "${own_pattern[@]}" >"$work/log" 2>&1
    verdict $? "a pattern of one's own: $(cat "$work/log")"
fi
if found ICU; then
    "$tokenize" "${normalised[@]}" >"$work/log" 2>&1 && [ "$("$tokenize" --decode "$work/own")" = '<|endoftext|>café' ]
    verdict $? "text in normal form C: $(cat "$work/log")"
fi

# ---- what was found is kept, until something changes that it depends on
late=$work/late tried=$work/tried
printf '#!/bin/sh\n[ "$1" != -x ] || echo "$*" >>"%s"\nexec g++ -I%s -L%s "$@"\n' "$tried" "$late" "$late" >"$work/compiler"
chmod +x "$work/compiler"
kept() { make --no-print-directory -pn DEVICE=cpu VARIANT=-kept CXX="$work/compiler" "$@" 2>/dev/null; }
all_found() { kept build/.deps-cpu | sed -nE 's/^FOUND := *//p'; }
builds_tried() { grep -c -- ' -o ' "$tried"; }
lacks() {   # NAME CHANGE COMMAND...: after the command NAME is no longer found, and all others are
    local found_now
    "${@:3}" && found_now=$(all_found) && [ "$found_now" = "$(tr ' ' '\n' <<<"$all" | grep -vx "$1" | xargs)" ]
    verdict $? "$2: found '${found_now:-}', of '$all'"
}
has_all() {   # CHANGE COMMAND...
    local found_now
    "${@:2}" && found_now=$(all_found) && [ "$found_now" = "$all" ]
    verdict $? "$1: found '${found_now:-}', of '$all'"
}
nothing_tried() {   # NAME COMMAND...
    : >"$tried"
    "${@:2}" >/dev/null 2>&1 && [ ! -s "$tried" ]
    verdict $? "$1 compiles nothing: $(head -n 2 "$tried")"
}
rm -rf build/cpu-kept; : >"$tried"
all=$(all_found)
[ "$(builds_tried)" -ge 5 ]
verdict $? "the first time each library is tried: $(cat "$tried")"
: >"$tried"
again=$(all_found)
[ "$again" = "$all" ] && [ "$(builds_tried)" = 0 ]
verdict $? "the second time none is: found '$again', of '$all', after: $(cat "$tried")"
nothing_tried "make help" make --no-print-directory DEVICE=cpu VARIANT=-kept CXX="$work/compiler" help
nothing_tried "make clean" make --no-print-directory -n DEVICE=cpu VARIANT=-kept CXX="$work/compiler" clean
stop() { echo "#error hidden" >"$late/$1"; }
if found ZLIB; then
    lacks ZLIB "a header in a folder that was not there" eval 'mkdir -p "$late" && stop zlib.h'
    has_all "the header is gone" rm "$late/zlib.h"
    echo '#include_next <zlib.h>' >"$late/zlib.h"
    has_all "a header that is none but another's" true
    lacks ZLIB "a header that was written anew" stop zlib.h
    has_all "the folder is gone" rm -r "$late"
    lacks ZLIB "a library" eval 'mkdir -p "$late" && echo hidden >"$late/libz.so"'
    has_all "the library is gone" rm "$late/libz.so"
    mkdir -p "$work/later" && echo "#error hidden" >"$work/later/zlib.h"
    CPATH=$work/later lacks ZLIB "CPATH" true
    has_all "no CPATH" true
    cp "$work/compiler" "$work/compiler-before"
    lacks ZLIB "another compiler of that name" sed -i '2i case "$* " in *"-lz "*) exit 1; esac' "$work/compiler"
    has_all "the compiler of before" cp "$work/compiler-before" "$work/compiler"
    USE_ZLIB=0 kept build/.deps-cpu | grep '^USED := ' >"$work/log"
    ! grep -q ZLIB "$work/log" && has ZLIB < <(kept build/.deps-cpu | grep '^USED := ')
    verdict $? "USE_ZLIB=0 is of that build alone: $(cat "$work/log")"
else
    echo "SKIPPED hiding ZLIB: it is not here"
fi
if found ICU; then
    mkdir -p "$late/unicode"
    lacks ICU "a header in a folder of its own" stop unicode/normalizer2.h
    has_all "that header is gone" rm "$late/unicode/normalizer2.h"
else
    echo "SKIPPED hiding ICU: it is not here"
fi
if found MPI; then
    mkdir -p "$work/wrapper"
    printf '#!/bin/sh\necho -lno-such-mpi\n' >"$work/wrapper/mpicc"
    chmod +x "$work/wrapper/mpicc"
    PATH="$work/wrapper:$PATH" lacks MPI "another mpicc" true
    has_all "the mpicc of before" true
else
    echo "SKIPPED hiding MPI: it is not here"
fi
rm -rf build/cpu-kept

# what cannot be done without is named: by the check that every build begins with
missing() {   # DEVICE or DEVICE-unit, header|library FILE WORDS
    local hidden
    without "$2" "$3"
    rm -f "build/.deps-$1"
    make --no-print-directory DEVICE="${1%-unit}" CXX="g++ $hidden" "build/.deps-$1" >"$work/log" 2>&1
    [ $? -ne 0 ] && grep -q -- "$4" "$work/log"
    verdict $? "DEVICE=$1 without the $2 $3 names $4: $(tail -n 3 "$work/log")"
    make --no-print-directory DEVICE="${1%-unit}" "build/.deps-$1" >/dev/null 2>&1
}
missing cpu header dnnl.h libdnnl-dev
missing cpu library dnnl libdnnl-dev
missing cpu header CLI/CLI.hpp libcli11-dev
missing cpu header xxhash.h libxxhash-dev
missing cpu-unit header doctest/doctest.h doctest-dev
# nvcc may be a script that calls it
if command -v nvcc >/dev/null; then
    cuda_home() { env -u CUDA_HOME make --no-print-directory -pn DEVICE=cuda NVCC="$1" help 2>/dev/null | sed -n 's/^CUDA_HOME := //p'; }
    mkdir -p "$work/bin"
    printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v nvcc)" >"$work/bin/nvcc"
    chmod +x "$work/bin/nvcc"
    home=$(cuda_home "$work/bin/nvcc")
    [ -e "$home/bin/nvcc" ] && [ "$home" = "$(cuda_home "$(command -v nvcc)")" ]
    verdict $? "CUDA is found through a script called nvcc: $home"
else
    echo "SKIPPED CUDA's folder through a script: nvcc is not here"
fi
mkdir -p "$work/old"
printf '#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n' >"$work/old/nvcc"
chmod +x "$work/old/nvcc"
NVCC="$work/old/nvcc" CUDA_FLAGS='' dev/tools/deps.sh --check cuda >"$work/log" 2>&1
[ $? -eq 69 ] && grep -q 'nvcc 12.8 or later: this one is of CUDA 12.4' "$work/log"
verdict $? "an nvcc that is too old is refused by its version: $(cat "$work/log")"
if make --no-print-directory DEVICE=cuda build/.deps-cuda >/dev/null 2>&1; then
    missing cuda header nccl.h libnccl-dev
    missing cuda header cublasLt.h nvidia-cublas
    for header in cudnn.h cudnn_frontend_version.h; do
        without header $header
        ! make --no-print-directory DEVICE=cuda CXX="g++ $hidden" USE_CUDNN=1 tools >"$work/log" 2>&1 &&
            grep -q 'nvidia-cudnn-cu13.*nvidia-cudnn-frontend' "$work/log"
        verdict $? "USE_CUDNN=1 without $header names the packages: $(tail -n 1 "$work/log")"
    done
    rm -f build/.deps-cuda
    [[ $(make --no-print-directory DEVICE=cuda CXX="g++ $hidden" build/.deps-cuda 2>&1) == *'built without cuDNN: no library attention'* ]]
    verdict $? "a build without cuDNN says so"
    for source in library_attention_cudnn attention_cudnn; do
        make --no-print-directory DEVICE=cuda VARIANT=-no-cudnn CXX="g++ $hidden" \
            build/cuda-no-cudnn/obj/llmc/kernels/attention/library/$source.cpp.o >"$work/log" 2>&1
        verdict $? "$source.cpp without cuDNN's headers: $(tail -n 3 "$work/log")"
    done
    [[ $(nm -C build/cuda-no-cudnn/obj/llmc/kernels/attention/library/attention_cudnn.cpp.o) != *cudnn* ]]
    verdict $? "nothing of cuDNN is left in the build without its headers"
    rm -rf build/cuda-no-cudnn
    cuda=build/cuda-bf16-all/train_gpt
    if [ -e "$cuda" ]; then
        for with in 0 $(found MPI && echo 1); do
            make --no-print-directory -j"$(nproc)" DEVICE=cuda VARIANT=-all PRECISION=bf16 USE_MPI="$with" "$cuda" >"$work/log" 2>&1
            links "$cuda" nccl && { [ "$with" = 1 ] && links "$cuda" mpi || { [ "$with" = 0 ] && ! links "$cuda" mpi; }; }
            verdict $? "the CUDA build with USE_MPI=$with links NCCL, and MPI where it should: $(tail -n 2 "$work/log")"
        done
    else
        echo "SKIPPED what the CUDA build links: make cuda-compile has not made $cuda"
    fi
else
    echo "SKIPPED the CUDA build's packages: they are not here"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
