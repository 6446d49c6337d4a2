#!/usr/bin/env bash
# The CUDA build refuses a kernel that spills registers, and accepts the same one with room: spill_test.sh [ARCHITECTURE...],
# by default 90a.
# Alone: it builds.
source "$(dirname "$0")/common.sh"
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "SKIPPED spills: no nvcc on this machine"; exit 0; }
cat >"$work/kernel.cu" <<'CU'
// 40 numbers wait in registers for a barrier: one block of 1,024 threads leaves 64 to each, two such blocks 32.
__global__ void __launch_bounds__(1024, BLOCKS) planted(float* p) {
    float kept[40];
#pragma unroll
    for (int i = 0; i < 40; i++) kept[i] = p[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 40; i++) p[(39 - i) * 1024 + threadIdx.x] = kept[i] * kept[(i * 7) % 40];
}
CU
# the build's own command for a kernel's file, with another source
source=llmc/kernels/matmul/bias_gradient.cu
for arch in "${@:-90a}"; do
    command=$(make -n DEVICE=cuda PRECISION=bf16 PTXAS=error CUDA_ARCHS=$arch -W $source build/cuda/obj/$source.o 2>/dev/null | grep -m1 -E "nvcc .*-c $source")
    for blocks in 1 2; do
        ${command%% -MMD*} -DBLOCKS=$blocks -c "$work/kernel.cu" -o "$work/kernel.o" >"$work/log" 2>&1
        status=$?
        if [ $blocks -eq 1 ]; then [ $status -eq 0 ]; else [ $status -ne 0 ] && grep -q 'spilled' "$work/log"; fi
        verdict $? "sm_$arch, $blocks block(s): exit $status: $(tail -n 3 "$work/log")"
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
