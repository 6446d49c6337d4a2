#!/usr/bin/env bash
# Real NCCL with 2 and 4 ranks on one GPU: every collective against what each rank can compute for itself, the certificate
# and the training loop of layouts (docs/testing.md), then the same losses as one process gives, within the tolerance
# of another order of additions.
#
# NCCL refuses two ranks on one GPU unless each has a host id of its own; it then talks over loopback sockets. Slow, but
# the very calls that many GPUs make.
DEVICE=cuda
source "$(dirname "$0")/common.sh"
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "No GPU answers on this machine (nvidia-smi)." >&2
    exit 69
fi
unit_test=$(realpath "${UNIT_TEST:-build/cuda/unit_test}") || exit 70
model_test=$(realpath "${MODEL_TEST:-build/cuda-bf16/unit_test}") || exit 70
needs "$train_gpt" "$tokenize"
verdict() {   # STATUS NAME
    if [ "$1" -eq 0 ]; then   # said at once: the time for all of it may run out
        passed=$((passed + 1)) && echo "passed: ${2%%: *}"
    else
        failed=$((failed + 1)) && echo "FAILED: $2"
    fi
}

# each process a host of its own, all on GPU 0
apart=(bash -c 'export NCCL_HOSTID=train_gpt_$RANK NCCL_SOCKET_IFNAME=lo CUDA_VISIBLE_DEVICES=0; exec "$@"' -)

numbers_as_data 20000 3000
run=("$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 --heads 2 --channels
    128 --seq-len 64 --micro-batch 2 --total-batch 1024 --max-steps 10 --val-every 10 --sample-every 0 --attention own)
losses() { sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$1/metrics.jsonl"; }
dev/test/limited.sh 120 "${run[@]}" --output-dir "$work/alone" >"$work/alone.log" 2>&1
verdict $? "one rank: $(tail -n 3 "$work/alone.log")"

on_ranks() {   # RANKS LOG COMMAND...: loopback sockets and one card for all are slow: the limit is for what hangs
    dev/test/limited.sh 180 scripts/launch.sh -n "$1" "${apart[@]}" "${@:3}" >"$2" 2>&1
}
for ranks in 2 4; do
    on_ranks $ranks "$work/comm$ranks.log" "$unit_test" -tc='comm:*'
    verdict $? "$ranks ranks, collectives: $(tail -n 20 "$work/comm$ranks.log")"
    for zero in 0 3; do
        out=$work/r$ranks-z$zero
        on_ranks $ranks "$out.log" "${run[@]}" --zero $zero --output-dir "$out"
        verdict $? "$ranks ranks, ZeRO $zero: $(tail -n 5 "$out.log")"
        paste -d' ' <(losses "$work/alone") <(losses "$out") |
            awk '{ d = ($1 - $2) / $1; if (d > 5e-4 || d < -5e-4 || NF != 2) bad = 1 } END { exit bad || NR != 10 }'
        verdict $? "$ranks ranks, ZeRO $zero, losses: $(paste -d' ' <(losses "$work/alone") <(losses "$out") | tail -n 3)"
    done
    on_ranks $ranks "$work/layouts$ranks.log" "$model_test" -tc='certificate: a sample*,layouts:*'
    verdict $? "$ranks ranks, layouts: $(tail -n 20 "$work/layouts$ranks.log")"
done
# what is least like AdamW over one group: matrices that travel to their owners, two-level sums, longer steps
as_one() {   # NAME RANKS "OPTIONS OF BOTH" OPTIONS OF RANKS...: the losses are those of one process
    local name=$1 ranks=$2 both out=$work/${1// /-}
    read -ra both <<<"$3"
    dev/test/limited.sh 120 "${run[@]}" "${both[@]}" --output-dir "$out-alone" >"$out-alone.log" 2>&1
    verdict $? "$name, one rank: $(tail -n 3 "$out-alone.log")"
    on_ranks "$ranks" "$out.log" "${run[@]}" "${both[@]}" "${@:4}" --output-dir "$out"
    verdict $? "$name: $(tail -n 5 "$out.log")"
    paste -d' ' <(losses "$out-alone") <(losses "$out") |
        awk '{ d = ($1 - $2) / $1; if (d > 2e-3 || d < -2e-3 || NF != 2) bad = 1 } END { exit bad || NR != 10 }'
    verdict $? "$name, losses: $(paste -d' ' <(losses "$out-alone") <(losses "$out") | tail -n 3)"
}
as_one "muon, tp 2" 2 "--optimizer muon" --tp 2
as_one "muon, zero 2, groups of 2" 4 "--optimizer muon" --zero 2 --zero-group 2
as_one "longer sequences" 2 "--seq-len-schedule 1:16,4:32,8:64" --zero 1
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
