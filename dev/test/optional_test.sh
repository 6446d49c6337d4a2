#!/usr/bin/env bash
# Builds where something optional is hidden: MPI, PCRE2, ICU, zlib, zstd and cuDNN's headers, the header and the library in turn; and
# what is said where something needed is missing. `optional_test.sh long` also tries start-up in the build without MPI.
#
# A folder that the compiler looks into first hides a package: a header that stops, a library that is none. The builds
# are made in the folders of the others, so that only the objects concerned are compiled, and made again at the end.
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
gzip -c "$work/text.txt" >"$work/text.txt.gz"; cp "$work/text.txt.gz" "$work/text.txt.zst"   # never read
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
    [ "$(make --no-print-directory -pn DEVICE="${2:-cpu}" help 2>/dev/null | sed -nE "s/^$1_FOUND := //p")" = 1 ]
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
        ! make --no-print-directory DEVICE=cuda CXX="g++ $hidden" USE_CUDNN=1 help >"$work/log" 2>&1 &&
            grep -q 'nvidia-cudnn-cu13.*nvidia-cudnn-frontend' "$work/log"
        verdict $? "USE_CUDNN=1 without $header names the packages: $(tail -n 1 "$work/log")"
    done
    rm -f build/.deps-cuda
    [[ $(make --no-print-directory DEVICE=cuda CXX="g++ $hidden" build/.deps-cuda 2>&1) == *'built without cuDNN: no library attention'* ]]
    verdict $? "a build without cuDNN says so"
    for source in library_attention_cudnn attention_cudnn; do
        make --no-print-directory DEVICE=cuda VARIANT=-no-cudnn CXX="g++ $hidden" \
            build/cuda-no-cudnn/obj/llmc/kernels/attention/$source.cpp.o >"$work/log" 2>&1
        verdict $? "$source.cpp without cuDNN's headers: $(tail -n 3 "$work/log")"
    done
    [[ $(nm -C build/cuda-no-cudnn/obj/llmc/kernels/attention/attention_cudnn.cpp.o) != *cudnn* ]]
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
