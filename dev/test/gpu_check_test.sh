#!/usr/bin/env bash
# gpu_check.sh itself, with programs that stand for the real ones: its table and JSON name every step that failed, that ran
# out of its time, that was left no time and whose program was not built; its exit code tells; nothing stays behind. Then
# limited.sh, and where cuda.mk finds CUDA.
# Alone: steps have seconds.
source "$(dirname "$0")/common.sh"
program() {   # FILE BODY
    mkdir -p "$(dirname "$work/$1")"
    printf '#!/bin/bash\n%s\n' "$2" >"$work/$1"
    chmod +x "$work/$1"
}
mkdir -p "$work/dev/test"
cp dev/test/{gpu_check,limited}.sh "$work/dev/test/"
program bin/nvidia-smi 'echo "GPU 0: \"none\""'
program bin/make 'echo "$*" >>'"$work/made"
program bin/compute-sanitizer '[[ $1 != --tool ]] || shift 4; exec "$@"'
for name in build/cuda/unit_test build/cuda-{bf16,fp32}/{unit_test,test_gpt} dev/test/{nccl_one_gpu,train_test,sass_test}.sh; do
    program $name 'echo "3 passed, 0 failed"'
done
program build/cuda-bf16/bench 'echo "    1234.5 tokens/s"'
run() { rm -f "$work/made"; OUT=$work/out PATH=$work/bin:$PATH timeout 900 "$work/dev/test/gpu_check.sh" "$@" >"$work/log" 2>&1; }
step() { grep -qE "^$1 +$2 +[0-9]+ s  $3" "$work/out/gpu_check.txt"; }   # PART RESULT NAME
is_gone() {   # FILE with a process's number: it has ended, whether or not that was noticed
    local state i
    for i in {1..1200}; do   # a process that was killed may take a moment to go
        state=$(sed -E 's/.*\) (.).*/\1/' "/proc/$(cat "$work/$1")/stat" 2>/dev/null)
        [ "${state:-Z}" = Z ] && return 0
        sleep 0.1
    done
    return 1
}
in_json() {   # how many steps have this RESULT
    python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
assert report["passed"] + report["failed"] + report["skipped"] == len(report["steps"]), "counts"
assert set(report["machine"]) >= {"gpu", "driver", "nvcc", "gxx", "commit"}
print(sum(step["result"] == sys.argv[2] for step in report["steps"]))' "$work/out/gpu_check.json" "$1"
}

run && tail -n 2 "$work/log" | grep -qE '^32 passed, 0 failed, 0 skipped' && [ "$(in_json ok)" = 32 ] &&
    sed -n 2p "$work/out/gpu_check.txt" | grep -q 'the least certain product' && step speed ok 'speed: step  \(1234.5 tokens/s\)' && step ranks ok NCCL && grep -q '==== model: whole model' "$work/out/gpu_check.log"
verdict $? "all parts pass: $(tail -n 30 "$work/log")"
grep -qvE 'WARNINGS= ' "$work/made" && verdict 1 "warnings do not stop a build: $(cat "$work/made")"
[ "$(tail -n 1 "$work/out/gpu_check.txt")" = "$(tail -n 2 "$work/log" | head -n 1)" ]
verdict $? "the table in its file ends as the one printed"

for part in build kernels model speed sanitize ranks; do
    run $part && ! grep -qvE "^$part |passed" "$work/out/gpu_check.txt" && [ -s "$work/made" ]
    verdict $? "$part alone, with what it builds: $(tail -n 12 "$work/log")"
done
run kernel
[ $? -eq 64 ] && grep -q 'the parts are: build kernels' "$work/log"
verdict $? "a part that there is not"

program build/cuda-bf16/test_gpt 'echo "a reason"; exit 3'
run
[ $? -eq 1 ] && grep -q '    | a reason' "$work/log" && step model FAILED 'whole model bf16  \(exit 3' &&
    grep -qE '^30 passed, 2 failed, 0 skipped' "$work/out/gpu_check.txt" && [ "$(in_json FAILED)" = 2 ]
verdict $? "a step that fails, alone and under compute-sanitizer: $(tail -n 3 "$work/log")"
program build/cuda-bf16/test_gpt 'echo "3 passed, 0 failed"'

program bin/make 'echo "$*" >>'"$work/made; "'[[ $* != *build/cuda/unit_test* ]] || exit 2'
run kernels sanitize ranks
[ $? -eq 1 ] && step kernels FAILED 'build tests of kernels' && step kernels SKIPPED 'unit tests +\(build/cuda/unit_test was not' &&
    step ranks SKIPPED NCCL && step sanitize ok 'memcheck, whole model'
verdict $? "a build that fails, and what needs it: $(cat "$work/out/gpu_check.txt")"
program bin/make 'echo "ptxas warning : Registers are spilled to local memory in function '"'f', 8 bytes"'"'
run build
[ $? -eq 0 ] && step build ok 'build tests of kernels  \(1 kernels spill registers, ptxas notes in 0 files'
verdict $? "kernels that spill are counted: $(cat "$work/out/gpu_check.txt")"
program bin/make 'echo "$*" >>'"$work/made"

# make profile: what nsys is asked for, and what is said without it
cp -r dev/tools "$work/dev/"
program bin/nsys 'echo "$*" >>'"$work/asked"
program bin/tokenize 'mkdir -p build/profile/data && echo {} >build/profile/data/manifest.json'
NSYS=$work/bin/nsys "$work/dev/tools/profile.sh" build/cuda-bf16/train_gpt "$work/bin/tokenize" --micro-batch 4 >"$work/log" 2>&1
[ $? -eq 0 ] && grep -q '^profile .* build/cuda-bf16/train_gpt .*--max-steps 3 .*--micro-batch 4$' "$work/asked" &&
    grep -q '^stats .*nvtx_sum' "$work/asked" && grep -q 'timeline: build/profile/three_steps' "$work/log"
verdict $? "three steps under nsys: $(cat "$work/log" "$work/asked")"
NSYS=$work/bin/no_nsys "$work/dev/tools/profile.sh" build/cuda-bf16/train_gpt "$work/bin/tokenize" >"$work/log" 2>&1
[ $? -eq 69 ] && grep -q 'Install nsight-systems-cli' "$work/log"
verdict $? "without nsys its package is named: $(cat "$work/log")"

# a rank that is a session of its own and does not listen
program build/cuda/unit_test "setsid bash -c 'trap : TERM; echo \$\$ >$work/rank; while :; do sleep 1; done' & sleep 400"
for seconds in 8 120; do   # again with more where what comes before took them
    GPU_CHECK_SECONDS=$seconds run kernels ranks
    code=$?
    ! step kernels FAILED 'the least certain product of sm_90a' || break
done
[ $code -eq 1 ] && step kernels FAILED 'the least certain product of sm_90a  \(stopped after [0-9]+ s' &&
    step kernels SKIPPED 'unit tests +\(no time left' && step ranks SKIPPED NCCL && [ "$(in_json SKIPPED)" = 7 ]
verdict $? "a step that hangs, and those after it: $(cat "$work/out/gpu_check.txt")"
is_gone rank
verdict $? "nothing of it is left"

# what a step has said is in the log at once: whoever ends the whole check keeps it
program build/cuda/unit_test 'echo half of it; sleep 400'
for seconds in 3 60; do   # again with more where it had not come so far
    OUT=$work/out PATH=$work/bin:$PATH dev/test/limited.sh $seconds "$work/dev/test/gpu_check.sh" kernels >"$work/log" 2>&1
    code=$?
    ! grep -q '^half of it' "$work/out/gpu_check.log" || break
done
[ $code -eq 124 ] && grep -q '^half of it' "$work/out/gpu_check.log"
verdict $? "the log of a check that was ended in the middle: $(cat "$work/out/gpu_check.log")"

program build/cuda/unit_test true
program bin/compute-sanitizer 'echo "Device not supported"; exit 1'
run sanitize
[ $? -eq 0 ] && step sanitize SKIPPED 'racecheck, attention and instructions +\(compute-sanitizer: Device not'
verdict $? "a sanitizer that is refused the device: $(cat "$work/out/gpu_check.txt")"
rm "$work/bin/compute-sanitizer"
if command -v compute-sanitizer >/dev/null; then
    echo "SKIPPED gpu_check.sh without compute-sanitizer: this machine has one"
else
    run sanitize
    [ $? -eq 0 ] && step sanitize SKIPPED 'racecheck, attention and instructions +\(no compute-sanitizer'
    verdict $? "no compute-sanitizer: $(tail -n 3 "$work/log")"
fi
program bin/nvidia-smi 'exit 9'
run
[ $? -eq 69 ] && grep -q 'No GPU answers' "$work/log"
verdict $? "no GPU"

dev/test/limited.sh 500 bash -c 'exit 7'
[ $? -eq 7 ]
verdict $? "limited.sh: the command's code"
dev/test/limited.sh 500 bash -c "setsid sleep 5000 & echo \$! >$work/left"
[ $? -eq 0 ] && is_gone left
verdict $? "limited.sh: what a command that ends well leaves behind"
rm "$work/left"
printf '#!/bin/sh\nexec "$0"\n' >"$work/again"
chmod +x "$work/again"
for i in {1..20}; do
    dev/test/limited.sh 500 bash -c "setsid $work/again & echo \$! >$work/left; sleep 0.0$((i % 10))" && is_gone left || break
    rm "$work/left"
done
[ ! -e "$work/left" ]
verdict $? "limited.sh: a process in the middle of an exec, which shows no environment"
dev/test/limited.sh 1 dev/test/limited.sh 200 bash -c "setsid sleep 5000 & echo \$! >$work/left; wait"
[ $? -eq 124 ] && is_gone left
verdict $? "limited.sh: one in another"

# what ptxas merely notes
noted() { program ptxas "echo '$1' >&2"; dev/tools/ptxas_notes.sh ${kind:-error} "$work/ptxas" >"$work/log" 2>&1; }   # NOTE
noted 'ptxas info : Used 168 registers
    0 bytes stack frame, 0 bytes spill stores' && [ ! -s "$work/log" ]
verdict $? "a compile without notes says nothing: $(cat "$work/log")"
for note in '(C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to' \
    'setmaxnreg ignored' '128 bytes stack frame, 0 bytes spill stores'; do
    ! noted "ptxas info : $note" && grep -q "$note" "$work/log"
    verdict $? "ptxas_notes.sh: $note is an error"
    kind=warning noted "ptxas info : $note" && grep -q "a warning" "$work/log" && grep -q "$note" "$work/log"
    verdict $? "ptxas_notes.sh: $note is a warning where it is to be one"
done
program ptxas 'echo "error: a reason"; exit 2'
dev/tools/ptxas_notes.sh error "$work/ptxas" >"$work/log" 2>&1
[ $? -eq 2 ] && grep -q 'a reason' "$work/log"
verdict $? "ptxas_notes.sh: the compiler's code, and what it said"

# a toolkit without cuBLASLt's header, pip's packages, headers of a distribution
toolkit=$work/toolkit pip=$work/pip/nvidia
program toolkit/bin/nvcc true
mkdir -p $toolkit/include $pip/{cu13,cudnn,nccl}/include
touch $toolkit/include/cuda_runtime.h $pip/cu13/include/{cuda_runtime,cublasLt}.h $pip/{cudnn/include/cudnn,nccl/include/nccl}.h
includes() {   # the folders that a compile for CUDA searches, in order
    make --no-print-directory DEVICE=cuda CUDA_HOME=$toolkit NVCC=$toolkit/bin/nvcc PIP_NVIDIA=$pip USE_MPI=0 USE_CUDNN=0 "$@" \
        --eval 'show: ; @echo $(CUDA_INCLUDES)' show | sed "s,-isystem ,,g; s,$work/,,g"
}
found=$(includes)
[[ "$found" == "toolkit/include pip/nvidia/cu13/include "* ]]
verdict $? "a toolkit without cublasLt.h is completed by pip's, after its own: $found"
touch $toolkit/include/cublasLt.h
found=$(includes)
[[ "$found" != *cu13* && "$found" == toolkit/include* ]]
verdict $? "a complete toolkit is left alone: $found"
found=$(includes CUDNN_INCLUDE=/usr/include)
[[ " $found " != *" /usr/include "* ]]
verdict $? "the compiler's own folder is not named: $found"
flags_of() {   # RELEASE of nvcc: its flags, and what ptxas's notes are
    program nvcc "echo 'Cuda compilation tools, release $1, V$1.88'"
    make --no-print-directory DEVICE=cuda NVCC="$work/nvcc" CUDA_HOME=$toolkit \
        --eval 'show: ; @echo $(NVCC_FLAGS) notes: $(PTXAS)' show
}
tuned=$(sed -n 's/^TUNED_NVCC := //p' dev/tools/cuda.mk)
[[ "$(flags_of "$tuned")" == *--warning-as-error*error ]] && [[ "$(flags_of "$tuned")" == *'-Werror all-warnings'* ]]
verdict $? "nvcc $tuned: spills, notes and warnings are errors: $(flags_of "$tuned")"
for release in 12.8 13.1 130.0; do
    [[ "$(flags_of $release)" == *--warn-on-spills*warning && "$(flags_of $release)" != *rror* ]]
    verdict $? "nvcc $release: they are warnings: $(flags_of $release)"
done
[[ "$(PTXAS=warning flags_of "$tuned")" == *--warn-on-spills*warning && "$(PTXAS=warning flags_of "$tuned")" != *warning-as-error* ]]
verdict $? "PTXAS=warning makes them warnings"
for test in llmc/kernels/gelu_test.cu llmc/kernels/attention/sm90/attention_hopper.cu; do   # what holds for single files stays
    command=$(make -n DEVICE=cuda PTXAS=warning WARNINGS= NVCC="$work/nvcc" CUDA_HOME=$toolkit -W $test build/cuda/obj/$test.o 2>/dev/null | grep -m1 -e "-c $test")
    case $test in
        *_test.cu) [ -n "$command" ] && [[ "$command" != *spills* && "$command" != *ptxas_notes* ]] ;;
        *) [[ "$command" == *'ptxas_notes.sh warning '*spills* ]] ;;
    esac
    verdict $? "PTXAS=warning, $test: $command"
done
mkdir -p $pip/cuda_runtime/lib && touch $pip/cuda_runtime/lib/libcudart.so.12
found=$(make --no-print-directory DEVICE=cuda CUDA_HOME=$work/none NVCC=$toolkit/bin/nvcc PIP_NVIDIA=$pip --eval 'show: ; @echo $(CUDA_LIBRARIES)' show)
[[ "$found" == *$pip/cuda_runtime/lib/libcudart.so.12* ]]
verdict $? "the runtime of pip's packages for CUDA 12 is found: $found"
flags=$(make --no-print-directory DEVICE=cuda WARNINGS= --eval 'show: ; @echo $(NVCC_FLAGS) $(HOST_FLAGS)' show)
[[ "$flags" != *-Werror* && "$flags" != *-Wall* ]]
verdict $? "WARNINGS= turns compilers' warnings off: $flags"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
