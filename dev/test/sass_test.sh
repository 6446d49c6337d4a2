#!/usr/bin/env bash
# What ptxas made of attention for sm_90a, read in its machine code: dev/test/sass_test.sh [OBJECT]. ptxas may move a wait
# for products up, past all that the wait has no part in; what was written to run beside them then comes after them.
#
# Needs cuobjdump, of the CUDA toolkit or of pip's nvidia-cuda-cuobjdump.
source "$(dirname "$0")/common.sh"
object=${1:-build/cuda-all/obj/llmc/kernels/attention/sm90/attention_hopper.cu.o}
tool=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump 2>/dev/null)
why=
[ -n "$tool" ] || why="no cuobjdump on this machine"
[ -e "$object" ] || why="there is no $object (make cuda-compile)"
[ -n "$why" ] || [[ $("$tool" --list-elf "$object") == *sm_90a* ]] || why="$object is for other GPUs"
if [ -n "$why" ]; then
    echo "SKIPPED the order of attention's instructions for sm_90a: $why"
    exit 0
fi

# For each wait of each kernel: how many batches may stay, exponentials and 16-byte loads from memory since the one before.
waits=$("$tool" -arch sm_90a -sass "$object" | awk '
    /Function :/ { name = $3; exponentials = loads = 0 }
    /MUFU.EX2/ { exponentials++ }
    /LDG?\.E\.128\.STRONG\.GPU/ { loads++ }
    /WARPGROUP.DEPBAR.LE/ { sub(/.*gsb0, 0x/, ""); print name, $1 + 0, exponentials, loads; exponentials = loads = 0 }')
holds() {   # WHAT KERNEL COUNT AWK_CONDITION: it holds for one of each kernel's waits, `before` being what the one before leaves
    local kernels kernel
    kernels=$(awk '{ print $1 }' <<<"$waits" | grep "$2" | sort -u)
    [ "$(wc -w <<<"$kernels")" -eq "$3" ] || { failed=$((failed + 1)) && echo "FAILED: kernels $2: $kernels"; }
    for kernel in $kernels; do
        awk -v name="$kernel" "\$1 == name { if ($4) found = 1; before = \$2 } END { exit !found }" <<<"$waits"
        verdict $? "$1 in $kernel; waits (batches left, exponentials, loads): $(grep "^$kernel" <<<"$waits")"
    done
}
holds "softmax beside sums += p v" attention_forward_hopper 4 '$2 == 0 && before == 1 && $3 >= 64'
holds "p beside v dout^T" attention_backward_hopper 8 '$2 == 0 && before == 1 && $3 >= 32'
holds "dq in memory comes beside ds^T k" attention_backward_hopper 8 '$2 == 1 && before == 0 && $4 >= 4'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
