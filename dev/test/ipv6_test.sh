#!/usr/bin/env bash
# Ranks meet by IPv6, by IPv4, and by names that mean one of them or both, with the losses of one host each time: in
# networks that have only IPv6, only IPv4, and on two hosts that have only IPv6. A name that does not resolve says why.
#
# It makes network namespaces with an /etc/hosts of their own, and says so where it has not the right to.
set -uo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != inside ]; then
    try='mount -t tmpfs none /run && ip netns add a && ip netns exec a ip link set lo up && ip link add name end0 type veth peer name end1 &&
        mount --bind /etc/hosts /etc/hosts && ip -6 -n a address show dev lo | grep -q ::1 || { echo "no ::1 on loopback" >&2; exit 1; }'
    if message=$(unshare --map-root-user --net --uts --mount bash -c "$try" 2>&1); then
        exec unshare --map-root-user --net --uts --mount "$0" inside
    fi
    echo "SKIPPED networks with only IPv6: no right to make network namespaces, or no IPv6: $(tail -n 1 <<<"$message")"
    echo "0 passed, 0 failed"
    exit 0
fi
source dev/test/common.sh
needs "$train_gpt" "$tokenize"
mount -t tmpfs none /run
ip link set lo up

numbers_as_data 20000 3000
run=("$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --val-every 0 --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 2
    --total-batch 256 --max-steps 3 --sample-every 0 --zero 1 --init-timeout 6000)
port=29600   # in a network of this test alone

# two NAME OPTIONS...: ranks 0 and 1, each with what stands in at0 or at1 before its command, end well with the losses of
# one host. between: a command that runs when rank 0 listens.
at0=() at1=() between=:
listens() { grep -qsi ":$(printf %04x $port) .* 0A " /proc/net/tcp /proc/net/tcp6; }
end_of_two() {   # PID PID: waits for both; where one ends badly, ends the other. Status: that of the one
    local ended status other
    wait -n -p ended "$1" "$2"
    status=$?
    other=$(($1 + $2 - ended))
    [ $status -eq 0 ] || kill -KILL "$other" 2>/dev/null
    wait "$other" || status=$((status ? status : $?))
    return $status
}
two() {
    local name=$1 rank_0 status=1
    shift
    "${at0[@]}" "${run[@]}" --processes 2 --process-rank 0 --output-dir "$work/$name" "$@" >"$work/$name.0" 2>&1 &
    rank_0=$!
    if [ "$between" = : ] || { eventually $rank_0 listens && $between; }; then
        "${at1[@]}" "${run[@]}" --processes 2 --process-rank 1 --output-dir "$work/$name" "$@" >"$work/$name.1" 2>&1 &
        end_of_two $rank_0 $!
        status=$?
    else
        echo "rank 0 does not listen" >"$work/$name.1"
        kill -KILL $rank_0 2>/dev/null
    fi
    [ $status -eq 0 ] && [ "$(records "$work/$name" | wc -l)" -eq 3 ] && cmp -s <(records "$work/one") <(records "$work/$name")
    verdict $? "$name (exit $status): $(tail -n 2 "$work/$name".[01])"
    port=$((port + 1))
}
launched() {   # NAME COMMAND...: the same by scripts/launch.sh, which chooses the address
    scripts/launch.sh -n 2 "${@:2}" "${run[@]}" --output-dir "$work/$1" >"$work/$1.log" 2>&1 &&
        cmp -s <(records "$work/one") <(records "$work/$1")
    verdict $? "$1: $(tail -n 3 "$work/$1.log")"
}
in_folder() { mkdir -p "$work/rendezvous" && two "$1" --init fs --init-folder "$work/rendezvous"; }

scripts/launch.sh -n 2 "${run[@]}" --output-dir "$work/one" >"$work/one.log" 2>&1
verdict $? "both kinds of addresses: $(tail -n 3 "$work/one.log")"

# ---- names: /etc/hosts, then nothing, then a name server at which nobody answers
printf '%s\n' '127.0.0.1 both' '::1 both' '::1 six' >"$work/hosts"
echo 'hosts: files' >"$work/nsswitch.conf"
: >"$work/resolv.conf"
for file in hosts nsswitch.conf resolv.conf; do
    [ -e /etc/$file ] && mount --bind "$work/$file" /etc/$file
done
two six --init tcp --init-address six:$port
two both --init tcp --init-address both:$port
# rank 0 listens at one of the two addresses: the other one is not there when it starts
first_ip6() { ip address del 127.0.0.1/8 dev lo; }
first_ip4() { ip address del ::1/128 dev lo; }
with_ip4() { ip address add 127.0.0.1/8 dev lo; }
with_ip6() { ip address add ::1/128 dev lo nodad; }
first_ip6
between=with_ip4 at0=(env MASTER_ADDR=localhost MASTER_PORT=$port) at1=(env MASTER_ADDR=both MASTER_PORT=$port)
two listens-at-ip6-alone --init tcp
first_ip4
between=with_ip6 at0=(env MASTER_ADDR=localhost MASTER_PORT=$port) at1=(env MASTER_ADDR=both MASTER_PORT=$port)
two listens-at-ip4-alone --init tcp
between=: at0=() at1=()
# rank 1 alone: what can never be known ends it at once (the limit is one of days), else the time
alone=("${run[@]}" --init tcp --processes 2 --process-rank 1 --init-timeout 1000000)
for address in ::1:2950 "a b:$port" 300.1.1.1:$port; do expect 64 "the address of rank 0 is $address: " "${alone[@]}" --init-address "$address"; done
expect 64 "MASTER_ADDR=[::1 MASTER_PORT=$port: it has no ]" env MASTER_ADDR='[::1' MASTER_PORT=$port "${alone[@]}"
expect 69 "rank 1 cannot reach rank 0 at nowhere:29500 within 1 s: nowhere does not resolve: Name or service not known" \
    "${alone[@]}" --init-address nowhere --init-timeout 1
expect 69 "nowhere.example.invalid does not resolve: Name or service not known; trying until --init-timeout 1 s" \
    env MASTER_ADDR=nowhere.example.invalid MASTER_PORT=$port "${alone[@]}" --init-timeout 1
expect 69 "cannot reach rank 0 at [::1]:$port within 1 s" "${alone[@]}" --init-address "[::1]:$port" --init-timeout 1
# rank 1 first: it waits for the name, whether the resolver calls its absence final or not
later() {   # NAME REASON
    "${run[@]}" --processes 2 --process-rank 1 --init tcp --init-address $1:$port --output-dir "$work/$1" >"$work/$1.1" 2>&1 &
    local rank_1=$! rank_0
    eventually $rank_1 grep -qs "$1 does not resolve: $2" "$work/$1.1"
    verdict $? "rank 1 warns of the name $1: $(tail -n 2 "$work/$1.1")"
    "${run[@]}" --processes 2 --process-rank 0 --init tcp --init-address $1:$port --output-dir "$work/$1" >"$work/$1.0" 2>&1 &
    rank_0=$!
    eventually $rank_0 listens || kill -KILL $rank_0 2>/dev/null
    echo "::1 $1" >>"$work/hosts"
    end_of_two $rank_0 $rank_1 && cmp -s <(records "$work/one") <(records "$work/$1")
    verdict $? "the name $1, made known later: $(tail -n 2 "$work/$1".[01])"
    port=$((port + 1))
}
later later-in-files "Name or service not known"
echo 'hosts: files dns' >"$work/nsswitch.conf"
printf '%s\n' 'nameserver 127.0.0.1' 'options timeout:1 attempts:1' >"$work/resolv.conf"
expect 69 "later does not resolve: Temporary failure in name resolution" "${alone[@]}" --init-address later --init-timeout 1
later later-in-dns "Temporary failure in name resolution"

# ---- only IPv6
ip -4 address flush dev lo
two ip6-digits --init tcp --init-address "[::1]:$port"
at0=(env MASTER_ADDR=::1 MASTER_PORT=$port) at1=(env "MASTER_ADDR=[::1]" MASTER_PORT=$port)
two ip6-environment --init tcp
at0=() at1=()
in_folder ip6-folder
launched ip6-launch

# ---- only IPv4: no address of IPv6, then a kernel that has none
ip address add 127.0.0.1/8 dev lo
ip -6 address flush dev lo
two ip4-digits --init tcp --init-address 127.0.0.1:$port
two ip4-name --init tcp --init-address both:$port
in_folder ip4-folder
launched ip4-launch
cat >"$work/no_ip6.cpp" <<'NO_IP6'
#include <cerrno>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
extern "C" int socket(int family, int type, int protocol) {
    if (family == AF_INET6) return errno = EAFNOSUPPORT, -1;
    return static_cast<int>(syscall(SYS_socket, family, type, protocol));
}
NO_IP6
if g++ -shared -fPIC -O1 "$work/no_ip6.cpp" -o "$work/no_ip6.so" 2>/dev/null; then
    at0=(env "LD_PRELOAD=$work/no_ip6.so") at1=("${at0[@]}")
    two no-ip6-digits --init tcp --init-address 127.0.0.1:$port
    two no-ip6-name --init tcp --init-address both:$port
    in_folder no-ip6-folder
    launched no-ip6-launch "${at0[@]}"
    at0=() at1=()
else
    echo "SKIPPED a kernel without IPv6: no g++ to build what hides it"
fi

# ---- two hosts that have only IPv6; 2001:db8::/32 is for documentation, nobody's
for h in 0 1; do
    ip netns add host$h
    ip -n host$h link set lo up
    ip -n host$h -4 address flush dev lo
done
ip -n host0 link add name cable type veth peer name cable netns host1
for h in 0 1; do
    ip -n host$h address add 2001:db8::1$h/64 dev cable nodad
    ip -n host$h link set cable up
done
at0=(ip netns exec host0) at1=(ip netns exec host1)
two hosts-digits --init tcp --init-address "[2001:db8::10]:$port"
echo '2001:db8::10 head' >>"$work/hosts"
two hosts-name --init tcp --init-address head:$port
in_folder hosts-folder
# the script that is run on every node
pids=()
for h in 0 1; do
    ip netns exec host$h env TRAIN_GPT="$train_gpt" TOKENIZE="$tokenize" TINY=1 GPUS=1 RUNS="$work/hand" NODE=$h NODES=2 HEAD=2001:db8::10 \
        scripts/multi_node/by_hand.sh scripts/run_gpt2_124M.sh --max-steps 2 --init-timeout 600 >"$work/hand.$h" 2>&1 &
    pids+=($!)
done
end_of_two "${pids[@]}"
status=$?
verdict $status "scripts/multi_node/by_hand.sh (exit $status): $(tail -n 3 "$work"/hand.[01])"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
