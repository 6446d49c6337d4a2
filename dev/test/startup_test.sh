#!/usr/bin/env bash
# Start-up by mpi, tcp and fs, from every launcher's environment variables: the same losses, character for character.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

numbers_as_data 20000 3000
run=("$train_gpt" --train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --layers 2 --heads 2 --channels
    32 --seq-len 32 --micro-batch 2 --total-batch 384 --max-steps 5 --val-every 5 --val-max-batches 4 --sample-every 0
    --zero 2 --init-timeout 600)
ranks=3

same() {   # NAME STATUS: the run in $work/NAME ended with STATUS and has the losses of the first one
    [ "$2" -eq 0 ] && [ "$(records "$work/$1" | wc -l)" -eq 7 ] && cmp -s <(records "$work/launch") <(records "$work/$1")
    verdict $? "$1 (exit $2): $(tail -n 3 "$work/$1.log")"
}

# each NAME COMMAND...: the ranks one by one in the background, "R" in the command standing for the rank
each() {
    local name=$1 status=0 pids=()
    shift
    for ((r = 0; r < ranks; r++)); do
        "${@//@R/$r}" --output-dir "$work/$name" >>"$work/$name.log" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    same "$name" $status
}

scripts/launch.sh -n $ranks "${run[@]}" --output-dir "$work/launch" >"$work/launch.log" 2>&1
same launch $?
[ "$(grep -c "^step " "$work/launch.log")" -eq 5 ]
verdict $? "one rank speaks: $(grep -c "^step " "$work/launch.log") lines of 5 steps"

scripts/launch.sh -n $ranks "${run[@]}" --check-collectives --output-dir "$work/checked" >"$work/checked.log" 2>&1
same checked $?

# Descriptors that are closed at the start take no connection between ranks and no file of the run: nothing that is printed
# gets into one.
closed() {   # NAME: the run has the losses of the first one, and its lock the one line that belongs there
    same "$1" "$2"
    grep -qxE 'process [0-9]+ on [^ ]+' "$work/$1/lock" && [ "$(wc -c <"$work/$1/lock")" -lt 100 ]
    verdict $? "$1: the run's lock holds only its holder: $(head -c 300 "$work/$1/lock")"
}
scripts/launch.sh -n $ranks "${run[@]}" --output-dir "$work/no-output" 2>"$work/no-output.log" >&-
closed no-output $?
scripts/launch.sh -n $ranks "${run[@]}" --output-dir "$work/no-errors" >"$work/no-errors.log" 2>&-
closed no-errors $?
: >"$work/nothing-open.log"
scripts/launch.sh -n $ranks "${run[@]}" --output-dir "$work/nothing-open" <&- >&- 2>&-
closed nothing-open $?
grep -L -Pzo 'int main\(.*\) \{\n    open_standard_descriptors\(\);\n' $(grep -rlE '^int main\(' --include='*.c*' *.cu llmc dev/tools dev/bench dev/test) >"$work/without"
nothing_wrong "every program's main() opens closed descriptors first" "$(<"$work/without")"

# a folder with what an earlier run left there, whose rank 0 was killed while it waited for the others
mkdir "$work/rendezvous"
echo "9 0123456789abcdef host/boot/1 127.0.0.1" >"$work/rendezvous/rank_0"
each tcp "${run[@]}" -pi tcp -ps "127.0.0.1:$(free_port)" -pn $ranks -pr @R
each fs "${run[@]}" -pi fs -pf "$work/rendezvous" -pn $ranks -pr @R -pg 8
each fs-again "${run[@]}" --init fs --init-folder "$work/rendezvous" --processes $ranks --process-rank @R
[ -z "$(ls "$work/rendezvous")" ]
verdict $? "the folder is left clean: $(ls "$work/rendezvous")"
each torchrun env MASTER_ADDR=127.0.0.1 "MASTER_PORT=$(free_port)" WORLD_SIZE=$ranks RANK=@R LOCAL_RANK=@R "${run[@]}"
each slurm env SLURM_STEP_ID=0 SLURM_NTASKS=$ranks SLURM_PROCID=@R SLURM_LOCALID=@R "${run[@]}" --init tcp --init-address "127.0.0.1:$(free_port)"
env SLURM_NTASKS=$ranks SLURM_PROCID=0 SLURM_LOCALID=0 timeout 600 "${run[@]}" --output-dir "$work/sbatch" >"$work/sbatch.log" 2>&1
verdict $? "in the shell of sbatch it is one process alone: $(tail -n 2 "$work/sbatch.log")"
mkdir "$work/pmi-rendezvous"
each pmi env PMI_SIZE=$ranks PMI_RANK=@R "${run[@]}" --init fs --init-folder "$work/pmi-rendezvous"
if ldd "$train_gpt" | has libmpi && command -v mpirun >/dev/null; then
    mpirun --allow-run-as-root --oversubscribe --bind-to none -np $ranks "${run[@]}" --output-dir "$work/mpi" >"$work/mpi.log" 2>&1
    same mpi $?
    mpirun --allow-run-as-root --oversubscribe --bind-to none -np $ranks "${run[@]}" -pi mpi --output-dir "$work/mpi-named" >"$work/mpi-named.log" 2>&1
    same mpi-named $?
elif ldd "$train_gpt" | has libmpi; then
    echo "SKIPPED start-up by mpi: there is no mpirun"
else
    message=$("${run[@]}" --init mpi 2>&1)
    [ $? -eq 64 ] && grep -q libopenmpi-dev <<<"$message"
    verdict $? "--init mpi without MPI names the package: $message"
    echo "SKIPPED start-up by mpi: this build is without MPI (no mpi.h when it was made)"
fi

# ---- what goes wrong
port=$(free_port)
"${run[@]}" -pi tcp -ps "127.0.0.1:$port" -pn $ranks -pr 2 >"$work/absent2.log" 2>&1 & third=$!
scripts/launch.sh -n 2 bash -c '"$@" --lr 0.00$((RANK + 1))' - "${run[@]}" >"$work/differ.log" 2>&1
[ $? -eq 64 ] && grep -q "the command line differs: rank 0 has lr=.*, rank 1 has lr=" "$work/differ.log"
verdict $? "ranks with other options are refused: $(tail -n 2 "$work/differ.log")"
scripts/launch.sh -n 3 "${run[@]}" --train-data "$work/none*.bin" --vocab-size 257 >"$work/none.log" 2>&1
[ $? -eq 74 ]
verdict $? "an error that all ranks meet keeps its exit code: $(tail -n 2 "$work/none.log")"
# a process that ends before the ranks have met ends the others at once: no limit here would end them within the hour
for victim in 0 1 2; do
    for end in 'kill -9 $$' 'exit 7' 'exit 0'; do
        case $end in k*) code=75 said="was killed by signal 9" ;; *7) code=7 said="ended with exit code 7" ;; *) code=69 said="ended with exit code 0" ;; esac
        timeout 600 scripts/launch.sh -g 3600 -n 3 bash -c "[ \$RANK != $victim ] || $end; exec \"\$@\"" - "${run[@]:0:${#run[@]}-1}" 3600 >"$work/early.log" 2>&1
        status=$?
        [ $status -eq $code ] && [ "$(grep -cE "^train_gpt: rank [0-2]: (error: )?rank $victim $said at start-up, before all had met$" "$work/early.log")" -ge 1 ]
        verdict $? "rank $victim ends before all have met ($end): exit code $status, expected $code: $(tail -n 4 "$work/early.log")"
    done
done
# rank 2 has looked for rank 0 since before the last two, so that it comes in time on any machine
"${run[@]}" -pi tcp -ps "127.0.0.1:$port" -pn $ranks -pr 0 --init-timeout 5 >"$work/absent.log" 2>&1
[ $? -eq 69 ] && grep -q "of 3 ranks these have not come within 5 s: 1" "$work/absent.log"
verdict $? "rank 0 says who is missing: $(tail -n 2 "$work/absent.log")"
wait $third
[ $? -eq 69 ] && grep -q "missing: 1" "$work/absent2.log"
verdict $? "rank 2 is told who is missing: $(tail -n 2 "$work/absent2.log")"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
