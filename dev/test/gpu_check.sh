#!/usr/bin/env bash
# Everything worth knowing from a GPU, for `make gpu-check`; with PART="NAME..." only those parts, each within nine minutes
# on 16 cores, building what it needs included:
#
#   build      all programs, bf16 and fp32, for the GPU at hand
#   kernels    unit tests of kernels, matmuls, attention and their instructions
#   model      whole model and training loop, bf16 and fp32
#   speed      the step, attention, matmuls, then every kernel
#   sanitize   compute-sanitizer on small tests
#   ranks      NCCL, several ranks on this one card
#
# Without PART all of it within ten minutes, what is least certain first (backward of head size 64 on sm_90a: N = 32, B
# in MN-major order, from 64 bytes into a swizzled row of 128), then what says most. What no time is left for is skipped and named, and so is
# what needs a program that could not be built. GPU_CHECK_SECONDS=N is another limit. A step that fails or runs out of time
# leaves no process on the card (limited.sh). Warnings and notes of compilers do not stop a build here: the table
# counts kernels that spill and files with notes. What can be built without the rest is.
#
# A folder named by OUT (default: build/gpu_check) has, at any moment: gpu_check.txt, the table; gpu_check.json, the same;
# gpu_check.log, the whole output of every step; and the benchmarks' bench-*.json.
# Needs a driver, nvcc, g++ and CUDA's libraries, of the toolkit or of pip, and the headers that `make deps` installs. Where
# nothing can be installed these may lie in third_party/include (docs/performance.md).
# What was seen on a GPU: docs/gpu.md.
set -uo pipefail
cd "$(dirname "$0")/../.."
parts=(build kernels model speed sanitize ranks)
chosen=("$@")
for name in "${chosen[@]}"; do
    [[ " ${parts[*]} " == *" $name "* ]] && continue
    echo "there is no part $name; the parts are: ${parts[*]}" >&2
    exit 64
done
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "No GPU answers on this machine (nvidia-smi)." >&2
    exit 69
fi
out=$(realpath -m "${OUT:-build/gpu_check}")
mkdir -p "$out" && rm -f "$out"/gpu_check.{txt,json,log} "$out"/bench-*.json || exit 74
deadline=$((SECONDS + ${GPU_CHECK_SECONDS:-$([ ${#chosen[@]} -eq 0 ] && echo 600 || echo $((${#chosen[@]} * 530)))}))
table=() rows=() unbuilt=()
passed=0 failed=0 skipped=0

quoted() { printf '"%s"' "$(printf %s "$1" | tr '\n\t' '  ' | tr -cd '\40-\176' | sed 's/[\\"]/\\&/g')"; }
version() { "$@" 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)*' | head -n 1; }
machine=$(printf '{"gpu": %s, "driver": %s, "nvcc": %s, "gxx": %s, "commit": %s, "cores": %s}' \
    "$(quoted "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)")" \
    "$(quoted "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)")" \
    "$(quoted "$(version "${NVCC:-nvcc}" --version)")" "$(quoted "$(version g++ -dumpfullversion)")" \
    "$(quoted "$(git rev-parse --short HEAD 2>/dev/null)")" "$(nproc)")

# One more row, of table and JSON; both are written at once, for whoever is stopped in the middle.
row() {   # PART RESULT SECONDS NAME NOTE
    table+=("$(printf '%-8s %-7s %5s s  %s%s' "$1" "$2" "$3" "$4" "${5:+  ($5)}")")
    rows+=("$(printf '{"part": "%s", "result": "%s", "seconds": %s, "name": %s, "note": %s}' "$1" "$2" "$3" \
        "$(quoted "$4")" "$(quoted "$5")")")
    printf '%s\n' "${table[@]}" "$(summary)" >"$out/gpu_check.txt"
    { printf '{"machine": %s,\n "passed": %s, "failed": %s, "skipped": %s, "seconds": %s,\n "steps": [\n  ' "$machine" \
        $passed $failed $skipped $SECONDS
      local IFS=$'\n'
      echo "${rows[*]}" | sed '$!s/$/,/; 2,$s/^/  /'
      echo ' ]}'; } >"$out/gpu_check.json"
}
summary() { echo "$passed passed, $failed failed, $skipped skipped, $SECONDS s"; }
skip() { skipped=$((skipped + 1)); row "$1" SKIPPED 0 "$2" "$3"; }   # PART NAME WHY

# The first of a step's parts that is asked for, in $part; false where none is.
wanted() {   # PARTS
    for part in $1; do
        [ ${#chosen[@]} -eq 0 ] || [[ " ${chosen[*]} " == *" $part "* ]] || continue
        return 0
    done
    return 1
}

# Runs one step of the part that `wanted` has set. True if it passed.
run() {   # NAME SECONDS COMMAND...
    local name=$1 limit=$2 start=$SECONDS left=$((deadline - SECONDS)) log=$out/gpu_check.log before status counts
    shift 2
    if [ $left -lt 2 ]; then
        skip "$part" "$name" "no time left"
        return 1
    fi
    [ $left -lt "$limit" ] && limit=$left
    printf '%-52s ' "$name"
    echo "==== $part: $name: $*" >>"$log"
    before=$(stat -c %s "$log")
    dev/test/limited.sh "$limit" "$@" >>"$log" 2>&1 </dev/null   # at once: whoever is killed in a step keeps what it said
    status=$?
    said() { tail -c +$((before + 1)) "$log" | sed 's/\x1b\[[0-9;]*m//g'; }
    if [ $status -eq 0 ]; then
        counts=$(said | sed 's/^ *//' | grep -aE '^[0-9.]+ tokens/s$' | paste -sd, | sed 's/,/, /g')
        [ -n "$counts" ] || counts=$(said |
            grep -aE '^\[doctest\] test cases|passed, [0-9]+ failed' | tail -n 1 | sed -E 's/^\[doctest\] //; s/ +/ /g')
        local spills notes
        spills=$(said | grep -ac 'Registers are spilled') notes=$(said | grep -ac '^ptxas notes')
        [ "$spills$notes" = 00 ] || counts="$spills kernels spill registers, ptxas notes in $notes files: see the log"
        echo "ok      $((SECONDS - start)) s  $counts"
        passed=$((passed + 1))
        row "$part" ok $((SECONDS - start)) "$name" "$counts"
    else
        local why="exit $status"
        [ $status -eq 124 ] && why="stopped after $limit s"
        echo "FAILED  $((SECONDS - start)) s  ($why)"
        said | tail -n 25 | sed 's/^/    | /'
        failed=$((failed + 1))
        row "$part" FAILED $((SECONDS - start)) "$name" "$why"
    fi
    return $status
}
step() {   # PART NAME SECONDS PROGRAM COMMAND...: COMMAND needs PROGRAM
    wanted "$1" || return 1
    if [[ " ${unbuilt[*]} " == *" $4 "* ]]; then
        skip "$part" "$2" "$4 was not built"
        return 1
    fi
    run "$2" "$3" "${@:5}"
}
build() {   # PARTS PRECISION NAME TARGETS...: for the first of PARTS that is asked for
    wanted "$1" || return 0
    local make=(make --no-print-directory DEVICE=cuda PRECISION="$2" WARNINGS= PTXAS=warning) target
    run "build $3" 530 "${make[@]}" -k -j"$(nproc)" "${@:4}" && return
    for target in "${@:4}"; do "${make[@]}" -q "$target" >/dev/null 2>&1 || unbuilt+=("$target"); done
}
bench() {   # NAME SECONDS PATTERN [OPTION]...
    step speed "speed: $1" "$2" build/cuda-bf16/bench build/cuda-bf16/bench --filter "$3" \
        --json "$out/bench-$1.json" "${@:4}"
}
no_sanitizer=
sanitize() {   # TOOL SECONDS NAME PROGRAM ARGUMENTS...
    wanted sanitize || return
    if [ -n "$no_sanitizer" ]; then
        skip sanitize "$1, $3" "$no_sanitizer"
    else
        step sanitize "$1, $3" "$2" "$4" compute-sanitizer --tool "$1" --error-exitcode 1 "${@:4}"
    fi
}
look_for_sanitizer() {   # virtual machines may have the tool and refuse it the device
    wanted sanitize || return
    if ! command -v compute-sanitizer >/dev/null; then
        no_sanitizer="no compute-sanitizer on the PATH"
    elif [[ $(dev/test/limited.sh 60 compute-sanitizer build/cuda/unit_test -tc='ptx:*' 2>&1 </dev/null) == \
        *'Device not supported'* ]]; then
        no_sanitizer="compute-sanitizer: Device not supported"
    fi
}

build "build kernels sanitize ranks" bf16 "tests of kernels" build/cuda/unit_test
step kernels "the least certain product of sm_90a" 60 build/cuda/unit_test build/cuda/unit_test \
    -tc='sm90: the least certain*,sm90: attention: every head size*,sm90: attention: heads of queries share*'
build "build speed" bf16 "train_gpt and bench, bf16" all build/cuda-bf16/bench
bench step 90 'step gpt2*'
step kernels "instructions and tensor-core attention" 60 build/cuda/unit_test build/cuda/unit_test \
    -tc='self_check*,ptx:*,attention*'
# says `skipped:` and why where cuDNN is refused
step kernels "cuDNN's attention" 60 build/cuda/unit_test build/cuda/unit_test -s -tc='library_attention*,cudnn*'
failed_before=$failed
# what knows no device is left out: it takes longer than all the rest
step kernels "unit tests" 120 build/cuda/unit_test build/cuda/unit_test -tce='sm90*' \
    -sfe='*/tokenizer/*,*/data/*,*/io/*,*/report/*'
if [ $failed -gt $failed_before ]; then   # a fault ends the program: file by file, the others are heard too
    for file in llmc/base/*_test.c* llmc/kernels/*_test.c* llmc/kernels/*/*_test.c*; do
        [[ $file == *_host_test.* || $file == *hopper* || $file == *_onednn_test.* ]] ||
            step kernels "${file##*/}" 40 build/cuda/unit_test build/cuda/unit_test -sf="*${file##*/}"
    done
fi
# alone, so that others say what they have to whatever it does
step kernels "instructions, attention, matmuls of sm_90a" 60 build/cuda/unit_test build/cuda/unit_test --no-skip -tc='sm90*'
step kernels "machine code of attention for sm_90a" 30 build/cuda/unit_test dev/test/sass_test.sh \
    build/cuda/obj/llmc/kernels/attention/sm90/attention_hopper.cu.o
build "build model ranks" bf16 "tests of the model, bf16" all build/cuda-bf16/unit_test build/cuda-bf16/test_gpt
step model "whole model bf16" 60 build/cuda-bf16/test_gpt build/cuda-bf16/test_gpt
step model "training bf16" 150 all env DEVICE=cuda PRECISIONS=bf16 dev/test/train_test.sh
step model "model tests bf16" 120 build/cuda-bf16/unit_test build/cuda-bf16/unit_test -tce='sm90*'
step model "choice of attention of sm_90a" 60 build/cuda-bf16/unit_test build/cuda-bf16/unit_test -tc='sm90*'
bench llama 90 'step llama*'
bench attention 60 '*attention*'
bench matmul 60 'matmul*'
bench everything 180 '*'
bench sm90 60 'own sm_90a*' --long
# the kernels that wait for copies and share memory between threads, on shapes longer than their pipelines
look_for_sanitizer
kernels='attention: a small case*,attention: queries that see no key*,ptx:*'
sanitize racecheck 90 "attention and instructions" build/cuda/unit_test -tc="$kernels"
sanitize synccheck 60 "attention and instructions" build/cuda/unit_test -tc="$kernels"
sanitize initcheck 60 "attention and instructions" build/cuda/unit_test -tc="$kernels"
sanitize racecheck 60 "reductions" build/cuda/unit_test -tc='layernorm*,classifier*,reduce*'
kernels='grouped mma*,experts: gathered*,adamw: matches*,newton-schulz: matrices*,low rank*'
kernels="$kernels,rotary: pairs*,norms of heads: both*"
sanitize memcheck 90 "experts, updates, rotary" build/cuda/unit_test -tc="$kernels"
sanitize racecheck 90 "experts, updates, rotary" build/cuda/unit_test -tc="$kernels"
build "sanitize" bf16 "test_gpt, bf16" build/cuda-bf16/test_gpt
sanitize memcheck 90 "whole model bf16" build/cuda-bf16/test_gpt -tc='*golden*'
build "build model" fp32 "train_gpt and tests of the model, fp32" all build/cuda-fp32/unit_test build/cuda-fp32/test_gpt
step model "whole model fp32" 60 build/cuda-fp32/test_gpt build/cuda-fp32/test_gpt
step model "training fp32" 150 build/cuda-fp32/test_gpt env DEVICE=cuda PRECISIONS=fp32 dev/test/train_test.sh
step model "model tests fp32" 120 build/cuda-fp32/unit_test build/cuda-fp32/unit_test
step ranks "NCCL, 2 and 4 ranks on one card" 500 build/cuda/unit_test dev/test/nccl_one_gpu.sh

echo
cat "$out/gpu_check.txt"
echo "table, JSON and logs: $out"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
