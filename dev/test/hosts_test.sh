#!/usr/bin/env bash
# Several hosts on one machine: each has a network and a host name of its own, and none can resolve another's name.
# Start-up by tcp and fs gives the losses of one host; a rank lost on the other host is named.
#
# It makes network namespaces, and says so where it has not the right to.
# Alone: networks of its own.
set -uo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != inside ]; then
    try='mount -t tmpfs none /run && ip netns add a && ip netns exec a unshare --uts hostname a && ip link add name end0 type veth peer name end1'
    if message=$(unshare --net --uts --mount bash -c "$try" 2>&1); then
        exec unshare --net --uts --mount "$0" inside   # so that nothing of it is left or seen outside
    fi
    echo "SKIPPED several hosts on one machine: no right to make network namespaces: $(tail -n 1 <<<"$message")"
    echo "0 passed, 0 failed"
    exit 0
fi
source dev/test/common.sh
needs "$train_gpt" "$tokenize"

# host0 and host1 at the two ends of a cable; 192.0.2.0/24 is for documentation, nobody's
mount -t tmpfs none /run
ip link set lo up
for h in 0 1; do
    ip netns add host$h
    ip -n host$h link set lo up
done
ip -n host0 link add name cable type veth peer name cable netns host1
for h in 0 1; do
    ip -n host$h address add 192.0.2.1$h/24 dev cable
    ip -n host$h link set cable up
    # the same address on both, in a network that reaches nobody else: there rank 2 finds itself, not rank 0
    ip -n host$h link add name private0 type veth peer name private1
    ip -n host$h address add 10.77.0.1/24 dev private0
    for end in private0 private1; do ip -n host$h link set $end up; done
done

numbers_as_data 20000 3000
run=("$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --val-every 0 --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2
    --total-batch 384 --max-steps 5 --sample-every 0 --zero 2 --init-timeout 6000)
ranks=3   # 0 and 1 on host0, 2 on host1

# on_hosts NAME NAME_OF_HOST_1 ARGUMENTS...: all ranks, in the background; their ids in pids, their logs in $work/NAME.R
on_hosts() {
    local name=$1 host1=$2
    shift 2
    pids=()
    for ((r = 0; r < ranks; r++)); do
        local h=$((r / 2)) host=gpt-test-0
        [ $h -eq 0 ] || host=$host1
        ip netns exec host$h unshare --uts bash -c 'hostname "$0" && exec "$@"' "$host" "${run[@]}" --processes $ranks \
            --process-rank $r --output-dir "$work/$name" "$@" >"$work/$name.$r" 2>&1 &
        pids+=($!)
    done
}
same() {   # NAME: the ranks of this run have ended well, with the losses of one host
    local status=0
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    [ $status -eq 0 ] && [ "$(records "$work/$1" | wc -l)" -eq 5 ] && cmp -s <(records "$work/one") <(records "$work/$1")
    verdict $? "$1 (exit $status): $(tail -n 2 "$work/$1".[0-9])"
}

scripts/launch.sh -n $ranks "${run[@]}" --output-dir "$work/one" >"$work/one.log" 2>&1
on_hosts tcp gpt-test-1 --init tcp --init-address 192.0.2.10:29500
same tcp
mkdir "$work/rendezvous"
on_hosts fs gpt-test-1 --init fs --init-folder "$work/rendezvous"
same fs
on_hosts same-name gpt-test-0 --init fs --init-folder "$work/rendezvous"   # containers often all have one name
same same-name

on_hosts lost gpt-test-1 --init tcp --init-address 192.0.2.10:29501 --max-steps 100000 --peer-timeout 120
eventually "${pids[0]}" grep -qs '^step    3/' "$work/lost.0"
kill -KILL "${pids[2]}"
for r in 0 1; do
    wait "${pids[r]}"
    [ $? -eq 75 ] && grep -qE 'rank 2 on gpt-test-1 died or was cut off, last heard at .* number [0-9]+ of group' "$work/lost.$r"
    verdict $? "rank $r names the one lost on the other host: $(tail -n 3 "$work/lost.$r")"
done

# ---- the script that is run on every node: two ranks of tp on each, dp across, as they are on one host
export TRAIN_GPT=$train_gpt TOKENIZE=$tokenize TINY=1 GPUS=4
recipe=scripts/run_gpt3_13B.sh
out=tiny/gpt3_13B
by_hand() {   # NAME VARIABLES... -- OPTIONS...: on both hosts, until both have ended
    local name=$1 status=0 variables=()
    shift
    while [ "$1" != -- ]; do variables+=("$1") && shift; done
    shift
    pids=()
    for h in 0 1; do
        ip netns exec host$h unshare --uts bash -c 'hostname "$0" && exec "$@"' gpt-test-$h env RUNS="$work/$name" NODE=$h \
            NODES=2 HEAD=192.0.2.10 "${variables[@]}" scripts/multi_node/by_hand.sh $recipe "$@" >"$work/$name.$h" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    [ $status -eq 0 ] && [ "$(grep -c '"loss"' "$work/$name/$out/metrics.jsonl")" -eq 4 ] &&
        cmp -s <(records "$work/hand-one/$out") <(records "$work/$name/$out")
    verdict $? "$name (exit $status): $(tail -n 3 "$work/$name".[01])"
}
GPUS=8 RUNS=$work/hand-one $recipe >"$work/hand-one.log" 2>&1
verdict $? "the same on one host: $(tail -n 3 "$work/hand-one.log")"
by_hand hand-tcp -- --init-timeout 600
secret=$work/hand-tcp/.secret
[ "$(stat -c %a "$secret")" = 600 ] && [ "$(wc -c <"$secret")" -eq 32 ]
verdict $? "the secret is kept for its owner alone: $(ls -l "$secret")"
by_hand hand-fs INIT=fs -- --init-timeout 600

# ---- the same over a link that takes 10 ms each way
if message=$(python3 dev/test/slow_link.py --check 2>&1); then
    for h in 0 1; do ip -n host$h link delete private0; done   # comes before a cable that is laid now
    ip -n host0 link delete cable
    python3 dev/test/slow_link.py cable0 cable1 0.01 >"$work/link.log" 2>&1 &
    link=$!
    eventually $link ip link show cable1 >/dev/null 2>&1   # /sys shows the networks of outside
    for h in 0 1; do
        ip link set cable$h netns host$h
        ip -n host$h address add 192.0.2.1$h/24 dev cable$h
        ip -n host$h link set cable$h up
    done
    ms=$(ip netns exec host0 bash -c 'from=$(date +%s%N); : </dev/tcp/192.0.2.11/9; echo $((($(date +%s%N) - from) / 1000000))' 2>/dev/null)
    [ "${ms:-0}" -ge 20 ]   # a connection that is refused takes one round trip
    verdict $? "the slow link's round trip takes ${ms:-no} ms: $(cat "$work/link.log")"
    by_hand slow-tcp -- --init-timeout 600
    by_hand slow-fs INIT=fs -- --init-timeout 600
    kill "$link"
else
    echo "SKIPPED hosts with 10 ms between them: $(tail -n 1 <<<"$message")"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
