#!/usr/bin/env bash
# The bench of collectives (`make bench BENCH=collectives`) on 2 and 4 ranks with short vectors: tables, JSON, picture, a
# machine that a plan reads, groups of a layout, algorithms of all-reduce. Speeds are not judged.
source "$(dirname "$0")/common.sh"
bench=$(realpath -m "${BENCH:-build/$device-bf16/bench}") launch=$PWD/scripts/launch.sh
needs "$bench" "$train_gpt"
over() { grep -oE '^[a-z_]+ over .* ranks' "$work/out" | sed -E 's/^[a-z_]+ over //' | uniq; }   # groups of the tables
groups() {   # EXPECTED: a group each line
    nothing_wrong "groups of the layout, expected '$1'" "$(diff <(printf '%b\n' "$1") <(over))"
}

cd "$work" || exit 70
program=("$launch" -n 2 "$bench" --filter collectives --max-bytes 4096)
expect 0 "machine, for train_gpt plan --machine: m.json" --algorithms --json c.json --picture c.svg --write-machine m.json
for operation in all_reduce reduce_scatter all_gather all_to_all broadcast reduce send_receive; do
    sizes=$(awk -v of="^$operation over all, 2 ranks: latency [0-9.]+ us, [0-9.]+ GB/s" '$0 ~ of { inside = 1; next } /^[a-z]/ { inside = 0 } inside && $1 ~ /^[0-9]+$/ && $2 > 0 { print $1 }' "$work/out" | xargs)
    [ "$sizes" = "8 64 512 4096" ]
    verdict $? "$operation: a row for each size, found: $sizes"
    check "$operation is in the picture" grep -qF ">$operation<" c.svg
done
[ "$(grep -c '"operation"' c.json)" -eq 14 ] && [ "$(grep -c '"inside_host": true' c.json)" -eq 14 ]
verdict $? "JSON of seven operations and seven algorithms: $(grep '"operation"' c.json)"
for words in 'bus bandwidth over all, 2 ranks, GB/s' 'bus bandwidth over all, by algorithm, 2 ranks' '>4 KiB<' '>8 B<' '>halving-doubling<'; do
    check "the picture has $words" grep -qF -- "$words" c.svg
done
for algorithm in naive 'parameter server, one' ring tree 'double binary tree' halving-doubling; do
    check "$algorithm has a row" grep -qE "^  $algorithm +([0-9.]+ *){4}$" out
done
! grep -q two-level out
verdict $? "two-level is left out on one host"
algorithm='(naive|parameter server, one|parameter server, all ranks|ring|tree|double binary tree|halving-doubling)'
check "the fastest of each size" grep -qE "^  the fastest +$algorithm(; $algorithm){3}$" out

# the links of the machine are the fits
fit() { sed -nE "s/^$1 over all, 2 ranks: latency ([0-9.]+) us, ([0-9.]+) GB\/s/$2/p" out; }
bandwidth=$(fit all_reduce '\2') latency=$(fit send_receive '\1')
in_machine() { sed -n "/\"intra\"/,/}/s/.*\"$1\": \([-0-9.e+]*\).*/\1/p" m.json; }
awk -v a="$bandwidth" -v b="$(in_machine bytes_per_second)" 'BEGIN { d = a - b / 1e9; exit !(b > 0 && (a == 0 || (d < 0.001 && d > -0.001))) }'
verdict $? "bandwidth inside a host: $bandwidth GB/s, $(in_machine bytes_per_second) in m.json"
awk -v a="$latency" -v b="$(in_machine seconds)" 'BEGIN { d = a - 1e6 * b; exit !(b > 0 && (a == 0 || (d < 0.1 && d > -0.1))) }'
verdict $? "latency inside a host: $latency us, $(in_machine seconds) s in m.json"
program=()
expect 0 "measured by bench --write-machine with 2 ranks" "$train_gpt" plan --verbose 1 --model d4 --total-batch 8192 --seq-len 1024 --micro-batch 4 --dp 2 --machine m.json

# groups of a layout
program=("$launch" -n 4 "$bench" --filter collectives --max-bytes 64)
expect 0 "" --tp 2
groups 'all, 4 ranks\ndp, 2 ranks\ntp, 2 ranks'
expect 0 "" --cp 2 --pp 2
groups 'all, 4 ranks\npp, 2 ranks\ncp, 2 ranks'
expect 0 "" --ep 2
groups 'all, 4 ranks\nep, 2 ranks'
expect 0 "" --zero-group 2
groups 'all, 4 ranks\nshard, 2 ranks\nreplica, 2 ranks'
expect 0 "" --tp 2 --ep 2 --picture layout.svg   # experts on the tp ranks: no second table
groups 'all, 4 ranks\ndp, 2 ranks\ntp, 2 ranks'
check "a panel for each group" [ "$(grep -c 'bus bandwidth over' layout.svg)" -eq 3 ]

# on two hosts, by name: tp ranks are inside one, dp ranks are not
cat >host_of_rank <<'END'
#!/usr/bin/env bash
exec unshare --uts bash -c 'hostname "host$((RANK / 2))" && exec "$@"' host_of_rank "$@"
END
chmod +x host_of_rank
if RANK=0 ./host_of_rank true 2>/dev/null; then
    program=("$launch" -n 4 "$work/host_of_rank" "$bench" --filter collectives --max-bytes 512 --tp 2)
    expect 0 "  two-level " --algorithms --json hosts.json --write-machine hosts
    told=$(tr -d '\n' <hosts.json | grep -oE '"group": "(all|dp|tp)", *"ranks": [0-9]+, *"inside_host": [a-z]+' | tr -s ' ' | sort -u)
    [ "$(sed -E 's/"group": "([a-z]+)".*: /\1 /' <<<"$told" | xargs)" = "all false dp false tp true" ]
    verdict $? "which groups are inside a host: $told"
    latency=$(sed -nE 's/^send_receive over (all|tp), .*latency ([0-9.]+) us.*/\2/p' out | xargs)
    of_machine=$(for link in inter intra; do sed -n "/\"$link\"/,/}/s/.*\"seconds\": \([-0-9.e+]*\).*/\1/p" hosts; done | awk '{ printf "%.1f ", 1e6 * $1 }' | xargs)
    [[ " $latency " == *" 0.0 "* ]] || [ "$latency" = "$of_machine" ]
    verdict $? "latency between and inside hosts: $latency us, $of_machine us in the machine"
else
    echo "SKIPPED several hosts: this needs the right to name them (unshare --uts)"
fi

# refused
program=("$launch" -n 2 "$bench" --filter collectives)
expect 64 "--tp" --tp 3
expect 74 "none/c.svg" --picture none/c.svg
expect 74 "none/m.json" --write-machine none/m.json
program=("$bench")
expect 64 "collectives of one process" --filter collectives
for option in --tp=2 --ep=2 --zero-group=2 --max-bytes=64 --algorithms --picture=c.svg --write-machine=m.json; do
    expect 64 "${option%=*} is of --filter collectives" --list "$option"
done

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
