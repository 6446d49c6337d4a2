#!/usr/bin/env bash
# scripts/scaling.sh: modelled times are the plan's, measured ones the medians of the runs; its table and picture, how it
# starts ranks on several nodes, that it can be stopped, and what it refuses.
source "$(dirname "$0")/common.sh"
loss_curve=$(realpath -m "${LOSS_CURVE:-build/$device$variant/loss_curve}")
needs "$train_gpt" "$tokenize" "$loss_curve"
export TRAIN_GPT=$train_gpt TOKENIZE=$tokenize LOSS_CURVE=$loss_curve RUNS=$work/runs GPUS=0
unset NODES NODE RANKS AXIS TIMES STEPS LAUNCH CUDA_VISIBLE_DEVICES
out=$RUNS/scaling_of_ranks
small=(--layers 2 --heads 2 --channels 64 --seq-len 64 --micro-batch 2)
rows() { grep -cE "$1" "$out/table.md"; }
point() { grep "\"scaling\":\"$1\",\"ranks\":$2," "$out/scaling.jsonl"; }   # weak|strong RANKS
figure() { sed -nE "s/.*\"$1\":([-0-9.e+]+).*/\1/p"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a - b <= 1e-4 * b && b - a <= 1e-4 * b) }'; }

expect 0 "Measures how training scales" scripts/scaling.sh --help
tail -n 1 "$work/out" | has '\.$' && ! grep -qE '^#|shellcheck|pipefail' "$work/out"
verdict $? "--help is the comment, all of it and nothing else: $(tail -n 1 "$work/out")"

# ---- modelled
expect 0 "picture: $out/scaling.svg" scripts/scaling.sh --zero 1
has "^modelled, not measured.* --gpu H100; dp grows" <"$out/table.md"
verdict $? "it says that times are modelled: $(head -n 1 "$out/table.md")"
[ "$(rows '^\| weak \| (1|2|4|8) \|')" -eq 4 ] && [ "$(rows '^\| strong \| (1|2|4|8) \| 32768 \|')" -eq 4 ]
verdict $? "four numbers of ranks each: $(cat "$out/table.md")"
for what in "weak 4 16384" "strong 2 32768"; do
    read -r scaling ranks tokens <<<"$what"
    "$train_gpt" plan --model gpt2:124M --vocab-size 50257 --seq-len 1024 --micro-batch 4 --zero 1 --total-batch "$tokens" --dp "$ranks" --gpu H100 --json 1 >"$work/plan"
    planned() { sed -nE "s/^ \"$1\": ([-0-9.e+]+),?$/\1/p" "$work/plan"; }
    near "$(point "$scaling" "$ranks" | figure tokens_per_s)" "$(planned tokens_per_second)"
    verdict $? "$what: $(point "$scaling" "$ranks"), the plan has $(planned tokens_per_second) tokens/s"
    exposed=$(grep -A 5 '"name": "dp"' "$work/plan" | sed -nE 's/.*"exposed_seconds": ([-0-9.e+]+).*/\1/p' | awk '{ print 1e3 * $1 }')
    near "$(point "$scaling" "$ranks" | figure dp)" "$exposed"
    verdict $? "$what: $(point "$scaling" "$ranks"), the plan has $exposed ms exposed of dp"
done
# tokens/s and rank, over those of one rank
near "$(point strong 8 | figure efficiency)" "$(awk -v all="$(point strong 8 | figure tokens_per_s)" -v one="$(point strong 1 | figure tokens_per_s)" 'BEGIN { print all / 8 / one }')"
verdict $? "efficiency: $(point strong 8), $(point strong 1)"
[ "$(point weak 8 | sed 's/"scaling":[^,]*,//; s/"efficiency":[^,]*//')" = "$(point strong 8 | sed 's/"scaling":[^,]*,//; s/"efficiency":[^,]*//')" ]
verdict $? "with the most ranks weak and strong scaling are the same"
for words in 'tokens per second' 'efficiency, %' 'exposed communication, % of a step' '>weak<' '>strong<' '>weak: dp<' '>8<'; do
    check "the picture has $words" grep -qF -- "$words" "$out/scaling.svg"
done
[ "$(grep -o 'class=.mean. ' "$out/scaling.svg" | wc -l)" -ge 8 ] && ! grep -qE 'nan|inf' "$out/scaling.svg"
verdict $? "the picture has curves"
AXIS=pp RANKS=1,4 expect 0 "| strong | 4 |" scripts/scaling.sh "${small[@]/#2/4}" --gpu A100
grep -qE '^\| strong \| 4 .* pp [0-9.]+ \(' "$out/table.md" && has "virtual clock of the given machine; pp grows" <"$out/table.md"
verdict $? "a pipeline's links are named: $(cat "$out/table.md")"
expect 0 "weak, ranks: 1: does not fit into the memory of the device" scripts/scaling.sh --model gpt3:13B --micro-batch 1

# ---- measured
TIMES=measured STEPS=4 RANKS="1 2" expect 0 "| strong | 2 | 256 |" scripts/scaling.sh "${small[@]}" --zero 1
has "^measured: medians of 3 steps; there is no GPU" <"$out/table.md"
verdict $? "it says that times are measured: $(head -n 1 "$out/table.md")"
sed -n 2p "$out/table.md" | has "^device: [^ ]"
verdict $? "it names the device: $(sed -n 2p "$out/table.md")"
for what in "weak 1 128" "weak 2 256" "strong 1 256"; do
    read -r scaling ranks tokens <<<"$what"
    run=$out/$scaling-$ranks
    [ "$(figure tokens <<<"$(point "$scaling" "$ranks")")" = "$tokens" ] && [ "$(grep -c '"loss"' "$run/metrics.jsonl")" -eq 4 ]
    verdict $? "$what: $(point "$scaling" "$ranks")"
    for key in tokens_per_s step_ms; do
        median=$(grep '"loss"' "$run/metrics.jsonl" | tail -n 3 | figure $key | sort -g | sed -n 2p)
        near "$(point "$scaling" "$ranks" | figure $key)" "$median"
        verdict $? "$what: $key is the median $median: $(point "$scaling" "$ranks")"
    done
done
median=$(grep '"loss"' "$out/weak-2/metrics.jsonl" | tail -n 3 | figure dp | sort -g | sed -n 2p)
near "$(point weak 2 | figure dp)" "$median"
verdict $? "exposed communication is the median $median: $(point weak 2)"
! compgen -G "$out/*/step_*" >/dev/null
verdict $? "no checkpoint is left"

# ---- on nodes
dry() { scripts/scaling.sh --dry-run "$@" 2>&1; }
AXIS=tp dry "${small[@]}" | has -F -- '--total-batch 1024 --dp 1 --tp 4 --gpu H100'
verdict $? "AXIS=tp: $(AXIS=tp dry "${small[@]}")"
AXIS=ep dry "${small[@]}" --experts 4 | has -E -- '--experts 4 .*--dp 4 --ep 4 --gpu H100'
verdict $? "AXIS=ep: $(AXIS=ep dry "${small[@]}" --experts 4)"
dry "${small[@]}" --tp 2 | has -E -- '^  weak, ranks: 16: .*--tp 2 .*--total-batch 1024 --dp 8 '
verdict $? "--tp 2 under more replicas: $(dry "${small[@]}" --tp 2)"
for total in "--total-batch 8192" --total-batch=8192 "-d 8192"; do
    # shellcheck disable=SC2086   # words
    dry $total -b 2 -t 64 --layers 2 | has -E -- '^  weak, ranks: 4: .* --micro-batch 2 --seq-len 64 --layers 2 .*--total-batch 4096 --dp 4 '
    verdict $? "$total of the most ranks, half of it for half: $(dry $total -b 2 -t 64 --layers 2)"
done
export LAUNCH="start -n @RANKS -N @NODES -g @GPUS"
for words in '  weak, ranks: 2: start -n 2 -N 1 -g 2 ' '  weak, ranks: 16: start -n 16 -N 2 -g 8 '; do
    GPUS=8 NODES=2 dry "${small[@]}" | has -F -- "$words"
    verdict $? "on two nodes, '$words': $(GPUS=8 NODES=2 dry "${small[@]}")"
done
unset LAUNCH
printf 'node0 slots=4\nnode1 slots=4\n' >"$work/hosts"
for words in 'ranks: 2: mpirun -np 2 --hostfile .* ppr:2:node ' 'ranks: 8: mpirun -np 8 --hostfile .* ppr:4:node .* --init mpi '; do
    HOSTS=$work/hosts scripts/multi_node/mpirun.sh scripts/scaling.sh --dry-run "${small[@]}" 2>&1 | has -E -- "$words"
    verdict $? "by mpirun.sh, '$words': $(HOSTS=$work/hosts scripts/multi_node/mpirun.sh scripts/scaling.sh --dry-run "${small[@]}" 2>&1)"
done

# ---- stopped
rm -rf "$out"
TIMES=measured STEPS=1000000 RANKS="1 2" scripts/scaling.sh "${small[@]}" >"$work/stopped" 2>&1 & pid=$!
eventually $pid grep -qs '"step":3,' "$out/weak-1/metrics.jsonl"
kill -TERM $pid
wait $pid
[ $? -eq 75 ] && grep -q "stopped; what was measured is in $out/scaling.jsonl" "$work/stopped"
verdict $? "a signal stops it: $(cat "$work/stopped")"

# ---- refused
expect 64 "--tokes: unknown option" scripts/scaling.sh --tokes 3
expect 64 "weak scaling, ranks: 1: ended with 64; see $out/weak-1.log" scripts/scaling.sh --tokes 3
TIMES=measured STEPS=3 RANKS=1 expect 64 "--tokes: unknown option" scripts/scaling.sh "${small[@]}" --tokes 3
for option in --output-dir=x --resume --max-steps; do expect 64 "$option: this script itself says where runs are" scripts/scaling.sh "$option" 1; done
expect 64 "--output-dir: this script itself says where runs are" scripts/scaling.sh -o x
expect 64 "--dp: follows from the number of ranks" scripts/scaling.sh --dp 2
AXIS=sp expect 64 "AXIS=sp: expected dp, cp, tp, pp or ep" scripts/scaling.sh
AXIS=tp expect 64 "--tp: AXIS=tp says that this grows" scripts/scaling.sh --tp 2
STEPS=2 expect 64 "STEPS=2: expected 3 or more" scripts/scaling.sh
TIMES=guessed expect 64 "TIMES=guessed: expected measured or modelled" scripts/scaling.sh
for ranks in many 0 "2 -1"; do RANKS=$ranks expect 64 "RANKS=$ranks: expected numbers of ranks" scripts/scaling.sh; done
RANKS=3 expect 64 "3 ranks: this layout takes a multiple of 2 (--tp 2 --pp 1 --cp 1)" scripts/scaling.sh --tp 2
RANKS=1,3 expect 64 "1 ranks: 4096 tokens, a step of 3 ranks, cannot be shared out" scripts/scaling.sh --total-batch 4096
GPUS=2 RANKS=4 expect 64 "4 ranks: there are 2 GPUs" scripts/scaling.sh
GPUS=1 expect 64 "1 GPUs: this layout takes 2 or more" scripts/scaling.sh --tp 2
GPUS=2 NODES=2 expect 64 "one machine cannot start them; use a script of scripts/multi_node/" scripts/scaling.sh
GPUS=2 NODES=2 NODE=0 expect 64 "scripts/multi_node/mpirun.sh or slurm.sh can start fewer" scripts/scaling.sh
GPUS=many expect 64 "GPUS=many NODES=1: expected numbers" scripts/scaling.sh
LOSS_CURVE=$work/none expect 69 "$work/none is not built" scripts/scaling.sh

# ---- the picture alone
printf '{"scaling":"weak","ranks":1,"tokens_per_s":5,"efficiency":1,"step_ms":2,"exposed_ms":{}}\n{"scaling":"weak"}\n' >"$work/points"
expect 65 "$work/points:2: " "$loss_curve" --scaling "$work/points" -o "$work/points.svg"
expect 74 "$work/absent" "$loss_curve" --scaling "$work/absent" -o "$work/points.svg"
expect 64 "--scaling takes one file of points and -o, nothing else" "$loss_curve" --scaling "$work/points" -y lr -o "$work/points.svg"
expect 64 "-o $work/points: is $work/points, which is to be drawn" "$loss_curve" --scaling "$work/points" -o "$work/points"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
