#!/usr/bin/env bash
# The scripts that train GPT-2 and GPT-3 models: what they say they will do, that train_gpt takes every option of theirs
# (runs that TINY=1 has made small), and that they go on by themselves. `scripts_test.sh long`: all of them, under every layout.
source "$(dirname "$0")/common.sh"
length=${1:-short}
needs "$train_gpt" "$tokenize"
root=$PWD
export TRAIN_GPT=$train_gpt TOKENIZE=$tokenize RUNS=$work/runs
unset CUDA_VISIBLE_DEVICES GPUS NODES TINY LAUNCH LAUNCH_SIGNAL AGAIN RESTARTS
recipes=(scripts/run_*.sh scripts/long_context.sh)

if command -v shellcheck >/dev/null; then
    shellcheck -x -S warning -e SC2064 scripts/*.sh scripts/multi_node/*.sh >"$work/shellcheck"
    verdict $? "shellcheck: $(head -n 20 "$work/shellcheck")"
else
    echo "SKIPPED shellcheck over scripts/: it is not installed"
fi

# expect STATUS WORDS COMMAND...
expect() {
    local status=$1 words=$2 found
    shift 2
    "$@" >"$work/log" 2>&1 </dev/null
    found=$?
    [ $found -eq "$status" ] && { [ -z "$words" ] || grep -qF -- "$words" "$work/log"; }
    verdict $? "$*: exit $found, expected $status and '$words': $(tail -n 3 "$work/log")"
}
layouts_of() { grep -oE '^layout [0-9]+' "$1" | cut -d' ' -f2; }
on() {   # GPUS COMMAND...: on nodes of eight
    local count=$1
    shift
    GPUS=$((count < 8 ? count : 8)) NODES=$((count < 8 ? 1 : count / 8)) "$@"
}
names_of_options() { sed -n 's/^  command  *//p' "$1" | tr ' ' '\n' | grep '^--'; }

# ---- what they say
told=$(grep -cE '^\| `(run_.*|long_context)\.sh` \|' docs/recipes.md)
[ ${#recipes[@]} -eq "$told" ] && [ "$told" -gt 1 ]
verdict $? "scripts/ holds ${#recipes[@]} recipes, docs/recipes.md tells of $told"
for recipe in "${recipes[@]}"; do
    memory=()
    for count in $(layouts_of "$recipe"); do
        expect 0 "GiB of a GPU; not counted: " on "$count" "$recipe" --dry-run
        grep -qF "ranks          $count on" "$work/log"
        verdict $? "$recipe --dry-run for $count GPUs: $(grep ranks "$work/log")"
        mv "$work/log" "$work/real"
        memory+=("$(sed -nE 's/^  memory +([0-9.]+) GiB.*/\1/p' "$work/real")")
        told=$(grep -oE '^  [a-z]+ ' "$work/real" | sort -u | tr -d ' \n')
        [ "$told" = commanddatahellaswaglossmemoryranksstepstepstime ]
        verdict $? "$recipe --dry-run tells $told"
        TINY=1 expect 0 command on "$count" "$recipe" --dry-run
        cmp <(names_of_options "$work/real") <(names_of_options "$work/log")
        verdict $? "$recipe, $count GPUs: TINY=1 has other options"
    done
    told=$(IFS=, && echo "${memory[*]}")
    grep -F "| \`${recipe#scripts/}\` |" docs/recipes.md | has -F "| ${told//,/, } |"
    verdict $? "docs/recipes.md has other memory of $recipe than $told"
done
GPUS=4 NODES=2 expect 0 "  warning        --tp 8 reaches over nodes" scripts/run_gpt3_6700M.sh --dry-run --tp 8 --dp 1
GPUS=8 expect 0 "  warning        a step of 1 micro-batches keeps at most 1 of 8 pipeline stages busy" \
    scripts/run_gpt3_6700M.sh --dry-run --tp 1 --pp 8 --dp 1 --micro-batch 1 --total-batch 2048
grep -qE "^  memory +[0-9.]+ GiB of a GPU; not counted: [^0-9]*$" "$work/log"
verdict $? "memory stands in a line of its own: $(grep memory "$work/log")"
GPUS=8 expect 0 "" scripts/run_gpt3_6700M.sh --dry-run
! grep -q warning "$work/log"
verdict $? "a layout without fault: $(grep warning "$work/log")"
[ ! -e "$RUNS" ]
verdict $? "--dry-run has written to $RUNS"
tokens() { on "$2" "scripts/$1" --dry-run | sed -nE 's/.* steps? .*, (.*) tokens in all/\1/p'; }
[ "$(tokens run_gpt2_124M.sh 8) $(tokens run_gpt3_175B.sh 128)" = "9.891 billion 300 billion" ]
verdict $? "tokens: $(tokens run_gpt2_124M.sh 8) $(tokens run_gpt3_175B.sh 128)"
expect 0 "--dry-run      say what would be done" scripts/run_gpt2_124M.sh --help
for name in by_hand mpirun slurm; do   # from any folder, without what they need to start
    for from in "$root" "$work"; do
        expect 0 "scripts/multi_node/$name.sh scripts/run_gpt3_6700M.sh [options]" env -C "$from" "$root/scripts/multi_node/$name.sh" --help
        head -n 1 "$work/log" | has '^Trains on .*nodes' && tail -n 1 "$work/log" | has '\.$' && ! grep -qE '^#|SBATCH -|pipefail' "$work/log"
        verdict $? "$name.sh --help is its comment, all of it and nothing else: $(sed -n '1p;$p' "$work/log")"
    done
done

# ---- what they refuse
expect 64 "--tokes: unknown option" scripts/run_gpt2_124M.sh --dry-run --tokes 3
expect 64 "foo: unknown option" scripts/run_gpt2_124M.sh --dry-run foo
GPUS=many expect 64 "GPUS=many NODES=1: expected numbers" scripts/run_gpt2_124M.sh --dry-run
GPUS=3 expect 64 "Numbers of GPUs that work: 1 2 4" scripts/run_gpt2_124M.sh --dry-run
GPUS=12 expect 64 "12 GPUs: this layout takes a multiple of 16 (--tp 8 --pp 2 --cp 1)" scripts/run_gpt3_13B.sh --dry-run --tp 8 --pp 2
GPUS=8 expect 64 "8 GPUs: this model has a layout for 128 or more" scripts/run_gpt3_175B.sh --dry-run
GPUS=0 expect 69 "there is no GPU" scripts/run_gpt2_124M.sh
GPUS=8 NODES=2 expect 64 "use a script of scripts/multi_node/" scripts/run_gpt2_1558M.sh
TINY=1 expect 64 "--tokes: unknown option" scripts/run_gpt2_124M.sh --tokes 3
GPUS=8 expect 64 "--micro-batch x: expected a number" scripts/run_gpt2_124M.sh --dry-run --micro-batch x
GPUS=8 expect 0 "2 micro-batches of 32768 tokens" scripts/run_gpt2_124M.sh --dry-run --micro-batch=32
GPUS=8 expect 0 "2 micro-batches of 32768 tokens" scripts/run_gpt2_124M.sh --dry-run -b 32
RUNS=$work/none TINY=1 TOKENIZE=/bin/false expect 1 "" scripts/run_gpt2_124M.sh   # and asks for no data from elsewhere
! grep -q "fineweb.sh" "$work/log"
verdict $? "TINY=1 without its data: $(tail -n 3 "$work/log")"

# ---- GPUs as nvidia-smi counts them
mkdir "$work/bin"
printf '#!/bin/sh\nprintf "GPU 0: one\\nGPU 1: two\\n"\n' >"$work/bin/nvidia-smi" && chmod +x "$work/bin/nvidia-smi"
PATH=$work/bin:$PATH expect 0 "ranks          2 on 1" scripts/run_gpt2_124M.sh --dry-run
CUDA_VISIBLE_DEVICES=2,3,5,7 expect 0 "ranks          4 on 1" scripts/run_gpt2_124M.sh --dry-run

# ---- data, in a copy of the tree whose scripts only say what they are asked for
mkdir "$work/tree" && cp -r scripts "$work/tree" && mkdir "$work/tree/data"
cat >"$work/tree/data/fineweb.sh" <<'END'
#!/bin/sh
echo "fineweb $*" >>asked
mkdir -p data/edu_fineweb100B/raw && touch data/edu_fineweb100B/a_train_0.bin data/edu_fineweb100B/a_val_0.bin
END
printf '#!/bin/sh\necho hellaswag >>asked\nmkdir -p data/hellaswag && touch data/hellaswag/hellaswag_val.bin\n' >"$work/tree/data/hellaswag.sh"
chmod +x "$work"/tree/data/*.sh
(cd "$work/tree" && GPUS=0 scripts/run_gpt2_1558M.sh --data-only && GPUS=8 scripts/run_gpt2_1558M.sh --data-only) >"$work/log" 2>&1
# the second call finds the questions, and shards without the manifest that ends their preparation
[ $? -eq 0 ] && [ "$(tr '\n' ',' <"$work/tree/asked")" = "fineweb --edu --size 100B,hellaswag,fineweb --edu --size 100B," ]
verdict $? "data that are absent: $(cat "$work/tree/asked" "$work/log")"
touch "$work/tree/data/edu_fineweb100B/manifest.json" && rm "$work/tree/asked"
(cd "$work/tree" && GPUS=8 scripts/run_gpt2_1558M.sh --data-only) >"$work/log" 2>&1
[ $? -eq 0 ] && [ ! -e "$work/tree/asked" ]
verdict $? "data that are there are not asked for again"
printf '#!/bin/sh\nexit 69\n' >"$work/tree/data/fineweb.sh" && rm "$work/tree/data/edu_fineweb100B/manifest.json"
(cd "$work/tree" && GPUS=8 expect 69 "data/fineweb.sh --edu --size 100B" scripts/run_gpt2_1558M.sh; echo "$failed" >"$work/failed")
failed=$(cat "$work/failed")

# ---- small runs
small() {   # GPUS SCRIPT
    local folder
    rm -rf "$RUNS"
    TINY=1 expect 0 "step    4/4" on "$1" "$2"
    grep -qE 'validation loss [0-9.]+ at step 4; others: [0-9n]' "$work/log"
    verdict $? "$2 does not say where it stands: $(tail -n 1 "$work/log")"
    folder=$RUNS/tiny/$(basename "${2#*run_}" .sh)
    [ "$(grep -c '"loss"' "$folder/metrics.jsonl")" -eq 4 ] && grep -q '"val_loss"' "$folder/metrics.jsonl" &&
        { grep -q hella "$folder/metrics.jsonl" || [[ $2 = */long_context.sh ]]; } && [ -e "$folder/step_00000004/manifest.json" ] && [ -e "$folder/step_00000002/manifest.json" ]
    verdict $? "$2 for $1 GPUs leaves $(ls "$folder")"
    counted_before "$1" "$2"
}
# What --print-memory has counted is in the table that the run has printed, row by row. (Of a pipeline that is rank 0's.)
counted_before() {   # GPUS SCRIPT; the run's output is $work/log
    local command dp
    mv "$work/log" "$work/run"
    TINY=1 expect 0 "GiB of a GPU" on "$1" "$2" --dry-run
    read -ra command < <(sed -nE "s/^  command .*train_gpt (--tp)/\\1/p" "$work/log")
    dp=$(sed -nE 's/^  ranks .*dp ([0-9]+).*/\1/p' "$work/log")
    [[ ! " ${command[*]} " =~ " --pp "[2-9] ]] || return
    rows() { sed -nE 's/^  ([a-z ]*[a-z]) +([0-9.]+ MiB) .* buffers?$/\1 \2/p' "$1" | sort; }
    "$train_gpt" "${command[@]//\\/}" --vocab-size 257 --dp "$dp" --print-memory >"$work/plan"
    # among the workspace is what tp ranks exchange through
    [[ ! " ${command[*]} " =~ " --tp "[2-9] ]] || sed -i '/^  workspace /d' "$work/plan" "$work/run"
    [ "$(rows "$work/plan" | wc -l)" -ge 6 ] && [ -z "$(comm -23 <(rows "$work/plan") <(rows "$work/run"))" ]
    verdict $? "$2, $1 GPUs: memory counted before and by the run: $(diff <(rows "$work/plan") <(rows "$work/run"))"
}
if [ "$length" = long ]; then
    for recipe in "${recipes[@]}"; do
        for count in $(layouts_of "$recipe"); do small "$count" "$recipe"; done
    done
else
    small 128 scripts/run_gpt3_175B.sh
    small 8 scripts/long_context.sh
    small 8 scripts/run_gpt2_124M.sh
    small 8 scripts/run_gpt2_124M_muon.sh
fi

# ---- a run goes on under the layout of the GPUs that there are now
rm -rf "$RUNS"
out=$RUNS/tiny/gpt3_13B
recorded() { sed -nE "s/.*\"$1\": *\"([^\"]*)\".*/\1/p" "$out/options.json" | head -n 1; }
for count in 16 8; do
    TINY=1 expect 0 "" on $count scripts/run_gpt3_13B.sh --max-steps $((20 - count))
    told="tp $(recorded tp), pp $(recorded pp)"
    [ "$told" = "tp 2, pp $((count / 8))" ]
    verdict $? "$count GPUs: $told; $(tail -n 3 "$work/log")"
done

# ---- cut, and continued by themselves
rm -rf "$RUNS"
out=$RUNS/tiny/gpt2_350M
last_step() { grep -o '^{"step":[0-9]*' "$out/metrics.jsonl" 2>/dev/null | tail -n 1 | grep -o '[0-9]*$' || echo 0; }
begin() {   # ARGUMENTS...: in the background, until it has made two steps more
    local from
    from=$(last_step)
    TINY=1 GPUS=8 scripts/run_gpt2_350M.sh --max-steps 100000 --val-every 0 --sample-every 0 "$@" >>"$work/cut.log" 2>&1 &
    pid=$!
    eventually "$pid" is_at $((from + 2))
}
is_at() { [ "$(last_step)" -ge "$1" ]; }   # STEP
ends() {   # STATUS NAME
    local status=0
    wait "$pid" || status=$?
    [ $status -eq "$1" ]
    verdict $? "$2 (exit $status): $(tail -n 4 "$work/cut.log")"
}
for signal in TERM USR1; do
    begin
    kill -s $signal $pid
    ends 75 "stopped by SIG$signal"
    tail -n 1 "$work/cut.log" | has "start this script again to continue the run in $out"
    verdict $? "it says how to go on after SIG$signal: $(tail -n 3 "$work/cut.log")"
done
grep -q "resuming from $out/step_" "$work/cut.log"
verdict $? "it resumes by itself"
TINY=1 GPUS=8 expect 75 "--time-limit reached" scripts/run_gpt2_350M.sh --max-steps 100000 --val-every 0 --sample-every 0 --time-limit 4   # or in start-up
! grep -q "started again" "$work/log"
verdict $? "a time limit ends it: $(tail -n 3 "$work/log")"
begin --checkpoint-every 1
pkill -KILL -o -f "^$train_gpt .*--output-dir $out "   # the oldest rank of this run
before=$(last_step)
goes_on() { grep -q "started again, to continue" "$work/cut.log" && is_at $((before + 2)); }
eventually "$pid" goes_on
kill -s TERM $pid
ends 75 "a run that lost a rank is started again"
grep -q "started again, to continue" "$work/cut.log" && [ "$(last_step)" -ge $((before + 2)) ]
verdict $? "it goes on after a lost rank: step $before, then $(last_step)"
begin --checkpoint-every 1
kill -s USR1 $pid
ends 75 "stopped once more"
steps=$(($(last_step) + 1))
TINY=1 GPUS=8 expect 0 "resuming from $out/step_" scripts/run_gpt2_350M.sh --max-steps 100000 --stop-after $steps --val-every 0 --sample-every 0
cmp -s <(seq "$steps") <(grep -o '^{"step":[0-9]*,"loss"' "$out/metrics.jsonl" | grep -o '[0-9]*')
verdict $? "every step is recorded once"

# ---- several nodes, with launchers that write down what they are called with
fakes=$work/fakes
mkdir "$fakes"
# mpirun ends as $CODE says; when it is asked to stop, as a run does that has saved
cat >"$fakes/mpirun" <<END
#!/usr/bin/env bash
trap 'echo USR1 >>"$work/asked"; exit 75' USR1
trap 'echo TERM >>"$work/asked"; exit 1' TERM
echo "$(basename mpirun) \$*" >>"$work/asked"
[ "\${CODE:-0}" != wait ] || for _ in \$(seq 6000); do sleep 0.1; done
exit \${CODE:-0}
END
# srun starts the tasks here, or ends as mpirun does; TRAIN_GPT_SECRET must have come
cat >"$fakes/srun" <<END
#!/usr/bin/env bash
trap 'echo USR1 >>"$work/asked"; exit 75' USR1
echo "srun \$* secret \${#TRAIN_GPT_SECRET}" >>"$work/asked"
tasks=\$(tr ' ' '\n' <<<"\$*" | sed -n 's/^--ntasks=//p')
while [[ \$1 = --* ]]; do shift; done
case \${CODE:-} in
    '') exec "$root/scripts/launch.sh" -n "\$tasks" "\$@" ;;
    wait) for _ in \$(seq 6000); do sleep 0.1; done ;;
    *) exit "\$CODE" ;;
esac
END
cat >"$fakes/scontrol" <<END
#!/usr/bin/env bash
echo "scontrol \$*" >>"$work/asked"
case \$1 in show) printf '127.0.0.1\nnode7\n' ;; esac
END
chmod +x "$fakes"/*
asked() {   # WORDS NAME: a launcher was called so; then all is forgotten
    grep -qF -- "$1" "$work/asked"
    verdict $? "$2: expected '$1', was $(cat "$work/asked")"
}
rm -rf "$RUNS"
export TINY=1
printf '# two nodes\nnode0 slots=4\nnode1 slots=4\n' >"$work/hosts"
of_mpi=(env "PATH=$fakes:$PATH" "HOSTS=$work/hosts" NCCL_DEBUG=INFO scripts/multi_node/mpirun.sh scripts/run_gpt3_13B.sh)
rm -f "$work/asked"
expect 0 "" "${of_mpi[@]}" --lr 1e-3
asked "mpirun -np 4 --hostfile $work/hosts --map-by ppr:2:node --bind-to none -x PATH -x LD_LIBRARY_PATH -x NCCL_DEBUG $train_gpt --tp" "mpirun's words"
asked "--lr 1e-3 --init mpi" "mpirun's last words"
CODE=64 expect 64 "" "${of_mpi[@]}"
rm "$work/asked"
CODE=137 RESTARTS=1 expect 75 "started again" "${of_mpi[@]}"   # a rank that was killed
[ "$(grep -c ^mpirun "$work/asked")" -eq 2 ]
verdict $? "one restart: $(cat "$work/asked")"
stop() {   # SIGNAL COMMAND...: sends it when the launcher runs; sets code
    local signal=$1
    shift
    rm -f "$work/asked"
    CODE=wait "$@" >"$work/log" 2>&1 &
    pid=$!
    eventually $pid grep -qsE '^(mpirun|srun)' "$work/asked"
    kill -s "$signal" $pid
    code=0
    wait $pid || code=$?
}
stop TERM "${of_mpi[@]}"
[ $code -eq 75 ] && ! grep -q TERM "$work/asked"
verdict $? "SIGTERM does not reach mpirun, which would abort the run (exit $code)"
asked USR1 "mpirun is asked to stop by SIGUSR1"
printf 'node0 slots=8\nnode1 slots=4\n' >"$work/hosts"
expect 64 "expected the same slots=N in every line, found: 8 4" "${of_mpi[@]}"
expect 64 "HOSTS=FILE scripts/multi_node/mpirun.sh" scripts/multi_node/mpirun.sh scripts/run_gpt3_13B.sh

if ldd "$train_gpt" | has libmpi && command -v mpirun >/dev/null; then   # the real one, on this machine
    echo 'localhost slots=4' >"$work/hosts"
    HOSTS=$work/hosts MPIRUN_FLAGS="--allow-run-as-root --oversubscribe" expect 0 "step    4/4" scripts/multi_node/mpirun.sh scripts/run_gpt2_124M.sh
else
    echo "SKIPPED scripts/multi_node/mpirun.sh with a real mpirun: no mpirun, or a build without MPI"
fi

expect 64 "sbatch --nodes=2" scripts/multi_node/slurm.sh scripts/run_gpt3_13B.sh
grep -qx '#SBATCH --signal=B:USR1@120' scripts/multi_node/slurm.sh && grep -qx '#SBATCH --requeue' scripts/multi_node/slurm.sh
verdict $? "the batch script asks for a signal and to be put back"
cp scripts/multi_node/slurm.sh "$work/spooled"   # as sbatch does
in_slurm=(env "PATH=$fakes:$PATH" SLURM_JOB_ID=17 "SLURM_SUBMIT_DIR=$root" SLURM_JOB_NUM_NODES=2 'SLURM_JOB_NODELIST=node[6-7]'
    SLURM_NTASKS_PER_NODE=4 "PORT=$(free_port)" "$work/spooled" scripts/run_gpt3_13B.sh)
rm -f "$work/asked"
expect 0 "step    4/4" "${in_slurm[@]}"
asked "srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=0 --export=ALL $train_gpt --tp" "srun's words"
asked "--init tcp --init-address 127.0.0.1:" "srun's tcp"
asked "secret 32" "the secret"
asked "scontrol show hostnames node[6-7]" "the first node"
! grep -q requeue "$work/asked"
verdict $? "a run that is done is not put back: $(cat "$work/asked")"
INIT=fs CODE=0 expect 0 "" "${in_slurm[@]}"
asked "--init fs --init-folder $RUNS/rendezvous-17" "srun's fs"
[ -d "$RUNS/rendezvous-17" ]
verdict $? "there is a folder to meet in"
INIT=mpi expect 64 "INIT=mpi: expected tcp or fs" "${in_slurm[@]}"
for lost in 75 137; do
    rm -f "$work/asked"
    CODE=$lost expect 75 "scontrol requeue 17" "${in_slurm[@]}"
    asked "scontrol requeue 17" "back into the queue after $lost"
done
rm -f "$work/asked"
CODE=64 expect 64 "" "${in_slurm[@]}"
SLURM_RESTART_COUNT=100 CODE=75 RESTARTS=0 expect 75 "start this script again" "${in_slurm[@]}"
! grep -q requeue "$work/asked"
verdict $? "neither a mistake nor the hundredth requeue goes back: $(cat "$work/asked")"
stop USR1 "${in_slurm[@]}"
[ $code -eq 75 ]
verdict $? "the signal before the time limit (exit $code): $(tail -n 3 "$work/log")"
asked USR1 "srun gets it"
asked "scontrol requeue 17" "and the job goes back"
stop TERM "${in_slurm[@]}"
[ $code -eq 75 ] && ! grep -q requeue "$work/asked"
verdict $? "scancel ends the job for good (exit $code): $(cat "$work/asked")"
NODES=2 expect 64 "NODE=0 NODES=2" scripts/multi_node/by_hand.sh scripts/run_gpt3_13B.sh
NODE=0 NODES=2 expect 64 "HEAD is to be the name or address of node 0" scripts/multi_node/by_hand.sh scripts/run_gpt3_13B.sh
unset TINY
NODE=1 NODES=2 HEAD=127.0.0.1 GPUS=8 expect 69 "node 0 gets them" scripts/multi_node/by_hand.sh scripts/run_gpt3_13B.sh

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
