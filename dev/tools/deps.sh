#!/usr/bin/env bash
# Installs what is missing to build for the given device: `dev/tools/deps.sh [--check] cpu|cuda [unit|test]`; with `unit`
# what unit tests are built with too, with `test` all that `make test` uses.
# Says which packages, and needs root or sudo; where it has neither it prints the line to run and stops.
# With --check nothing is installed: missing packages are an error (69).
# CUDA_FLAGS: compiler and linker flags of the CUDA libraries, as make found them.
set -euo pipefail
cd "$(dirname "$0")/../.."
check=
[ "${1:-}" = --check ] && { check=yes; shift; }
device=${1:-cpu}
with_tests=${2:-}

builds() { dev/tools/builds.sh "$@" -I. -isystem third_party/include; }
packages=()
needs() {   # PACKAGE HEADER STATEMENT FLAGS...: that package, unless a program that uses it builds
    builds "${@:2}" || packages+=("$1")
}
command -v g++ >/dev/null || packages+=(g++)
# of processors, the least is x86-64-v3
if [ "$device" = cpu ] && [ "$(uname -m)" = x86_64 ] && command -v g++ >/dev/null &&
    [[ $(g++ -march="${CPU_ARCH:-native}" -dM -E -x c++ /dev/null) != *__AVX2__* ]]; then
    echo "CPU_ARCH=${CPU_ARCH:-native}, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1): it has no AVX2. The least processor is x86-64-v3 (AVX2, FMA and BMI2)." >&2
    exit 69
fi
# headers alone: that they are found is enough (-E)
needs libcli11-dev CLI/CLI.hpp "" -E
needs nlohmann-json3-dev nlohmann/json.hpp "" -E
needs libxxhash-dev xxhash.h "" -E
[ "$device" = cpu ] && needs libdnnl-dev dnnl.h "dnnl_version()" -ldnnl
[ -n "$with_tests" ] && needs doctest-dev doctest/doctest.h "" -E
if [ "$with_tests" = test ]; then
    needs libpcre2-dev pcre2.h "pcre2_code_free(nullptr)" -DPCRE2_CODE_UNIT_WIDTH=8 -lpcre2-8
    needs libicu-dev unicode/normalizer2.h "UErrorCode e = U_ZERO_ERROR; icu::Normalizer2::getNFCInstance(e)" -licuuc
    needs zlib1g-dev zlib.h "zlibVersion()" -lz
    needs libzstd-dev zstd.h "ZSTD_versionNumber()" -lzstd
    command -v gzip >/dev/null || packages+=(gzip)
    command -v zstd >/dev/null || packages+=(zstd)
    command -v clang++ >/dev/null || packages+=(clang)
    # the stand-in is also tested under clang's sanitizers
    compgen -G "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-x86_64.a" >/dev/null || packages+=(libclang-rt-dev)
    command -v python3 >/dev/null || packages+=(python3)
    command -v pgrep >/dev/null || packages+=(procps)
    command -v ip >/dev/null || packages+=(iproute2)
    command -v unzip >/dev/null || packages+=(unzip)
    command -v script >/dev/null || packages+=(bsdutils)
    command -v shellcheck >/dev/null || packages+=(shellcheck)
    # start-up by mpirun; any MPI that is there will do
    command -v mpicc >/dev/null || packages+=(libopenmpi-dev)
    command -v mpirun >/dev/null || packages+=(openmpi-bin)
fi

# What NVIDIA gives comes from no package of Debian's main archive: it is named, never installed. So is what is too old:
# the least versions are those of launch.cu and nccl_version.h.
missing=
cuda_needs() {   # WHAT_AND_WHERE_FROM OTHERS_LIBRARY HEADER STATEMENT
    local flag flags=()
    for flag in ${CUDA_FLAGS:-}; do [[ $flag == *$2* ]] || flags+=("$flag"); done
    builds "$3" "$4" "${flags[@]}" || missing+="  $1"$'\n'
}
if [ "$device" = cuda ] && [ ${#packages[@]} -eq 0 ]; then
    if [ -x "${NVCC:-}" ] || command -v "${NVCC:-nvcc}" >/dev/null; then
        release=$("${NVCC:-nvcc}" --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
        if [ -n "$release" ] && [ "$(printf '%s\n' 12.8 "$release" | sort -V | head -n 1)" != 12.8 ]; then
            missing="  nvcc 12.8 or later: this one is of CUDA $release (https://developer.nvidia.com/cuda-downloads)"$'\n'
        fi
        cuda_needs "cuBLASLt (cublasLt.h, libcublasLt): NVIDIA's libcublas-dev-13-0, or pip's nvidia-cublas" nccl \
            cublasLt.h "cublasLtCreate(nullptr)"
        cuda_needs "NCCL 2.18.1 or later (nccl.h, libnccl): NVIDIA's or Debian's libnccl-dev, or pip's nvidia-nccl-cu13" \
            cublasLt nccl.h "static_assert(NCCL_VERSION_CODE >= 21801); ncclGetVersion(nullptr)"
    else
        missing="  nvcc: the CUDA toolkit 12.8 or later (https://developer.nvidia.com/cuda-downloads)"$'\n'
    fi
fi
if [ -n "$missing" ]; then
    printf 'missing for DEVICE=cuda:\n%sInstall it, or build without a GPU: make DEVICE=cpu\n' "$missing" >&2
    exit 69
fi

if [ ${#packages[@]} -eq 0 ]; then exit 0; fi
install="apt-get install -y --no-install-recommends ${packages[*]}"
echo "missing packages: ${packages[*]}"
if [ -n "$check" ]; then
    echo "Run: make deps. Headers alone (CLI, nlohmann, xxhash.h, doctest) may also lie in third_party/include." >&2
    exit 69
fi
if ! command -v apt-get >/dev/null; then
    echo "This system has no apt-get; install what provides these Debian packages: ${packages[*]}" >&2
    exit 69
elif [ "$(id -u)" = 0 ]; then
    sudo=()
elif sudo -n true 2>/dev/null; then
    sudo=(sudo)
else
    echo "Installing needs root. Run: sudo $install" >&2
    exit 69
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq || true   # an old list is often good enough
"${sudo[@]}" $install -qq >/dev/null || { echo "could not install; run: sudo $install" >&2; exit 69; }
