#!/usr/bin/env bash
# Installs what is missing to build for the given device: `dev/tools/deps.sh [--check] cpu|cuda [test]`.
# Says which packages, and needs root or sudo; where it has neither it prints the line to run and stops.
# With --check nothing is installed: missing packages are an error (69).
set -euo pipefail
check=
[ "${1:-}" = --check ] && { check=yes; shift; }
device=${1:-cpu}
with_tests=${2:-}

# a header that must be found : the Debian package that brings it
needed=(
    "CLI/CLI.hpp:libcli11-dev"
    "nlohmann/json.hpp:nlohmann-json3-dev"
    "xxhash.h:libxxhash-dev"
)
[ "$device" = cpu ] && needed+=("dnnl.h:libdnnl-dev")
[ -n "$with_tests" ] && needed+=("doctest/doctest.h:doctest-dev" "pcre2.h:libpcre2-dev")

# Optional: start-up by mpirun. Only named, never installed: --init tcp and fs need none.
has_mpi() { command -v mpicc >/dev/null || echo "#include <mpi.h>" | g++ -x c++ -E -o /dev/null - 2>/dev/null; }

packages=()
command -v g++ >/dev/null || packages+=(g++)
has_header() {
    [ -e "third_party/include/$1" ] || echo "#include <$1>" |
        g++ -x c++ -E -DPCRE2_CODE_UNIT_WIDTH=8 -o /dev/null - 2>/dev/null
}
for entry in "${needed[@]}"; do
    has_header "${entry%%:*}" || packages+=("${entry##*:}")
done
if [ -n "$with_tests" ]; then
    command -v clang++ >/dev/null || packages+=(clang)
    # the stand-in is also tested under clang's sanitizers
    compgen -G "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-x86_64.a" >/dev/null || packages+=(libclang-rt-dev)
    command -v python3 >/dev/null || packages+=(python3)
fi
if [ "$device" = cuda ] && ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "nvcc is missing: install the CUDA toolkit 12.8 or later (https://developer.nvidia.com/cuda-downloads)," >&2
    echo "or build without a GPU: make DEVICE=cpu" >&2
    exit 69
fi

has_mpi || echo "no MPI here: --init mpi will be refused (optional packages: libopenmpi-dev openmpi-bin)"
if [ ${#packages[@]} -eq 0 ]; then exit 0; fi
install="apt-get install -y --no-install-recommends ${packages[*]}"
echo "missing packages: ${packages[*]}"
if [ -n "$check" ]; then
    echo "Run: make deps" >&2
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
