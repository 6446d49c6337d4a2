#!/usr/bin/env bash
# The output folder of a run: it explains itself and continues by itself, is never overwritten by accident, and holds the
# last and the best state; a run whose numbers are not finite ends.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
cd "$work" || exit 70

same_records() { cmp <(without_times "$1/metrics.jsonl") <(without_times "$2/metrics.jsonl"); }
contents() { find "$1" -type f ! -name lock -exec sha256sum {} + | sort; }

seq 1 3000 >numbers.txt
seq 3001 6000 >others.txt
"$tokenize" --tokenizer bytes --quiet --output data --val-tokens 3000 numbers.txt >/dev/null || exit 70
"$tokenize" --tokenizer bytes --quiet --output other --val-tokens 4106 others.txt >/dev/null || exit 70
shape=(--layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --val-max-batches 2 --sample-every 0)
run=("$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' "${shape[@]}" --max-steps 8 --val-every 2)

# ---- what a run leaves: its options, its data, the program, the machine; and its last state without being asked to
expect 0 "checkpoint whole/step_00000008" "${run[@]}" --lr 0.002 --seed 7 -o whole
for part in '"lr": "0.002"' '"seed": "7"' '"train-data": "data/train*.bin"' '"recompute": "auto"' '"tokens": 10894' \
    '"data/manifest.json": "' '"program": "' '"device": "' '"processes": 1' "\"$(hostname)\": 1" '"after_step": 0'; do
    check "options.json holds $part" grep -qF -- "$part" whole/options.json
done
check "only the last state" [ "$(cd whole && echo step_*)" = step_00000008 ]

# ---- it continues by its folder alone
expect 0 "stopped after step 3 of 8" "${run[@]}" --lr 2e-3 --seed 7 -o cut --stop-after 3
expect 0 "step    8/8" "$train_gpt" --resume 1 --output-dir cut
check "continued by its folder alone, it equals the uncut run" same_records whole cut
check "every start is recorded" [ "$(grep -c '"after_step": [03]' cut/options.json)" -eq 2 ]
printf 'output-dir=cut\nresume=1\nmax-steps=10\nlr=0.004\n' >more.cfg
expect 0 "--lr 0.003: the run had 0.002 until now" "$train_gpt" --config more.cfg --lr 0.003
check "what differs is named, once" [ "$(grep -c 'until now' out)" -eq 2 ]
check "and recorded" grep -qF '"lr": "0.003"' cut/options.json
expect 0 "resuming from cut/step_00000010" "$train_gpt" --resume --output-dir cut
check "the same options are not named" [ "$(grep -c 'until now' out)" -eq 0 ]

# ---- so do several ranks, under the layout they had; another one must be said
launch=("$OLDPWD/scripts/launch.sh" -n 2)
expect 0 "step    8/8" "${launch[@]}" "${run[@]}" --tp 2 -o ranks
expect 0 "stopped after step 3 of 8" "${launch[@]}" "${run[@]}" --tp 2 -o ranks-cut --stop-after 3
expect 0 "step    8/8" "${launch[@]}" "$train_gpt" --resume 1 --output-dir ranks-cut
check "two tp ranks, continued by their folder alone" same_records ranks ranks-cut
check "the processes are recorded" grep -qF '"processes": 2' ranks-cut/options.json
expect 64 "= 2 ranks do not divide the 1 that were started" "$train_gpt" --resume 1 --output-dir ranks-cut
expect 0 "--tp 1: the run had 2 until now" "$train_gpt" --resume 1 --output-dir ranks-cut --tp 1

# ---- a file system that cannot sync folders: said once, and the run goes on; any other failure ends it
cat >cannot_sync.cpp <<'END'
#include <cerrno>
#include <cstdlib>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
extern "C" int fsync(int file) {
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISDIR(info.st_mode)) return static_cast<int>(syscall(SYS_fsync, file));
    errno = std::atoi(std::getenv("FSYNC_SAYS"));
    return -1;
}
END
if command -v g++ >/dev/null && g++ -shared -fPIC -o cannot_sync.so cannot_sync.cpp; then
    for code in 22 95 38; do   # EINVAL, ENOTSUP, ENOSYS
        rm -rf unsynced
        expect 0 "checkpoint unsynced/step_00000008" env FSYNC_SAYS=$code LD_PRELOAD="$PWD/cannot_sync.so" "${run[@]}" --lr 2e-3 --seed 7 -o unsynced
        check "errno $code is told once" [ "$(grep -c 'unsynced: fsync: .*: the file system cannot sync folders' out)" -eq 1 ]
        check "errno $code changes nothing" same_records whole unsynced
    done
    rm -rf unsynced
    expect 74 "unsynced: fsync failed: Input/output error" env FSYNC_SAYS=5 LD_PRELOAD="$PWD/cannot_sync.so" "${run[@]}" -o unsynced
else
    echo "SKIPPED a file system that cannot sync folders: no g++ to build what makes it so"
fi

# ---- what would make it another run is refused
expect 64 "--seed 43: the run to resume was started with --seed 7, by cut/step_" "$train_gpt" --resume -o cut --seed 43
expect 65 "the run was of a model with" "$train_gpt" --resume -o cut --channels 64
expect 65 "the run was of a model with" "$train_gpt" --resume -o cut --seq-len 16
cp -r data moved
expect 0 "--train-data moved/train*.bin: the run had data/train*.bin until now" "$train_gpt" --resume -o cut \
    --train-data 'moved/train*.bin'
expect 64 "--train-data: 1 file(s) of 10895 tokens with the hash" "$train_gpt" --resume -o cut --train-data 'other/train*.bin'
head -c 100 whole/options.json >cut/options.json
expect 65 "cut/options.json: not the record of a run" "$train_gpt" --resume -o cut
sed 's/"lr"/"learning-rate"/' whole/options.json >cut/options.json
expect 65 "cut/options.json: --learning-rate: unknown option" "$train_gpt" --resume -o cut
rm cut/options.json
expect 0 "resuming from cut/step_00000010" "${run[@]}" --seed 7 --resume -o cut --max-steps 10

# ---- results are not overwritten by accident
contents whole >before
expect 64 "--output-dir whole holds checkpoints of a run, up to step 8" "${run[@]}" -o whole
check "a refused run changes nothing" diff before <(contents whole)
mkdir killed && head -n 3 whole/metrics.jsonl >killed/metrics.jsonl
expect 64 "--output-dir killed holds the records of a run, in killed/metrics.jsonl" "${run[@]}" -o killed
expect 64 "remove the results with --overwrite" "${run[@]}" -o whole
expect 64 "--resume together with --overwrite" "${run[@]}" -o whole --resume --overwrite
expect 64 "a step takes 2000000" "${run[@]}" -o whole --overwrite --max-steps -1 --total-batch 64000000
expect 64 "lies in --output-dir whole, whose results --overwrite removes" "${run[@]}" --layers 0 --heads 0 --channels 0 \
    --model whole -o whole --overwrite
check "what cannot run removes nothing" [ -s whole/step_00000008/manifest.json ]
expect 0 "--overwrite: removed whole/step_00000008" "${run[@]}" -o whole --overwrite --max-steps 4
check "only the new run's results are left" [ "$(cd whole && echo step_*)" = step_00000004 ]
check "and its records" [ "$(grep -c '"loss"' whole/metrics.jsonl)" -eq 4 ]
check "and its record" [ "$(grep -c '"after_step"' whole/options.json)" -eq 1 ]
expect 64 "a step takes 2000000" "${run[@]}" -o empty --max-steps -1 --total-batch 64000000
expect 0 "step    8/8" "${run[@]}" -o empty

# ---- the best state: that of the lowest validation loss, also when the run is cut
best=("${run[@]}" --keep-best --lr 1 --warmup 8)   # so that it only gets worse
expect 0 "checkpoint best/best/step_" "${best[@]}" -o best
lowest=$(sed -nE 's/.*"step":([1-9][0-9]*),"val_loss":([0-9.]+).*/\2 \1/p' best/metrics.jsonl | sort -g | head -n 1 | cut -d' ' -f2)
[ -n "$lowest" ] && [ "$lowest" -lt 8 ] && [ "$(cd best/best && echo step_*)" = "$(printf 'step_%08d' "$lowest")" ]
verdict $? "best of step $lowest: $(ls best/best) $(grep val_loss best/metrics.jsonl | xargs)"
# a step that is both is written once: the files have two names, but for the note of what is still to be done
expect 0 "step    8/8" "${run[@]}" --keep-best --val-every 4 --checkpoint-every 4 -o both
both=$(basename both/best/step_*)
check "both verify" [ "$("$train_gpt" --resume -o both | grep -c 'passed over')" -eq 0 ]
check "the best state is a checkpoint too" [ "$(stat -c %h both/best/"$both"/{model,optimizer}-* "both/$both"/{model,optimizer}-* | sort -u)" = 2 ]
check "with its own run.json" [ "$(stat -c %h both/best/"$both"/run.json both/"$both"/run.json | sort -u)" = 1 ]
check "what remains to be done after it" grep -qF '"next": "step"' "both/$both/run.json"
expect 0 "checkpoint plain/step_00000008" "${run[@]}" --val-every 4 --checkpoint-every 4 -o plain
check "the same checkpoint as without --keep-best" diff -r "plain/$both" "both/$both"
expect 0 "step    8/8" "${launch[@]}" "${run[@]}" --keep-best --val-every 4 --checkpoint-every 4 -o both-ranks
check "and so do two ranks" [ "$(stat -c %h both-ranks/"$both"/{model,optimizer}-* | sort -u)" = 2 ]
expect 0 "stopped after step 5 of 8" "${best[@]}" -o best-cut --stop-after 5
expect 0 "step    8/8" "$train_gpt" --resume -o best-cut
check "the best of a resumed run" diff -r -x manifest.json best/best best-cut/best
expect 0 "step    8/8" "$train_gpt" --model "best/best/$(ls best/best)" --train-data 'data/train*.bin' \
    --val-data 'data/val*.bin' "${shape[@]}" --layers 0 --heads 0 --channels 0 --max-steps 8
# ---- a disk that gets full, then one that cannot be written to: named with the file, and what was saved goes on
mkdir small
if unshare --mount mount -t tmpfs none small 2>/dev/null; then
    unshare --mount bash -c 'mount -t tmpfs -o size=600k none small || exit
        "$@" --checkpoint-every 2 -o small/run >full.out 2>&1; echo $? >full.code
        mount -o remount,size=20m small
        "$1" --resume -o small/run >more.out 2>&1; echo $? >more.code
        mount -o remount,ro small
        "$1" --resume -o small/run --max-steps 10 >locked.out 2>&1; echo $? >locked.code' _ "${run[@]}"
    [ "$(cat full.code)" -eq 74 ] && [ "$(grep -c '^warning: small/run/step_0000000[468] was not written: .* No space left' full.out)" -eq 3 ] &&
        grep -q '^train_gpt: error: small/run/step_00000008.tmp/.*: write failed: No space left on device' full.out
    verdict $? "a full disk: exit code $(cat full.code), $(tail -n 3 full.out)"
    [ "$(cat more.code)" -eq 0 ] && grep -q 'resuming from small/run/step_00000002' more.out && grep -q '^checkpoint small/run/step_00000008' more.out
    verdict $? "what was saved before goes on: exit code $(cat more.code), $(tail -n 3 more.out)"
    [ "$(cat locked.code)" -eq 74 ] && grep -q 'small/run/.* failed: Read-only file system' locked.out
    verdict $? "a disk that is read-only: exit code $(cat locked.code), $(tail -n 3 locked.out)"
else
    echo "SKIPPED a full disk: no file system can be mounted here"
fi

expect 64 "--keep-best without --val-every" "${run[@]}" --keep-best --val-every 0 -o none
expect 64 "--keep-best without --output-dir" "${run[@]}" --keep-best

# ---- numbers that are not finite: the run stops, and does not pretend to be one that can go on
expect 0 "step    8/8" "${run[@]}" -o model --export-llmc model.bin
printf '\xff\x7f\xff\x7f' | dd of=model.bin bs=1 seek=1024 conv=notrunc 2>/dev/null   # NaN in bf16 and fp32
bad=("$train_gpt" --train-data 'data/train*.bin' --val-every 0 "${shape[@]}" --layers 0 --heads 0 --channels 0
    --model model.bin --max-steps 14)
expect 65 "of 10 steps in a row is not finite: stopped after step 10 of 14" "${bad[@]}" -o bad
check "records of the bad steps" [ "$(grep -c '"loss":null' bad/metrics.jsonl)" -eq 10 ]
check "no checkpoint of a run that went wrong" [ "$(echo bad/step_*)" = 'bad/step_*' ]
expect 65 "stopped after step 3 of 14" "${bad[@]}" --max-bad-steps 3
expect 0 "step   14/14" "${bad[@]}" --max-bad-steps 0
expect 65 "stopped after step 3 of 14" "${launch[@]}" "${bad[@]}" --max-bad-steps 3
# counted over a cut: 2 before, 1 after
expect 0 "stopped after step 2 of 14" "${bad[@]}" -o bad-cut --max-bad-steps 3 --stop-after 2
expect 65 "of 3 steps in a row is not finite: stopped after step 3 of 14" "$train_gpt" --resume -o bad-cut

# One that only the forward pass makes, of finite parameters: fcw of layer 2 of 4 is full of 3.4e38 (bf16 7f7f, fp32
# 7f7f7f7f). Every layout names it, with the rank that has it; the parameters stay what they are.
deep=("$train_gpt" --train-data 'data/train*.bin' --val-every 0 "${shape[@]}" --total-batch 256)
expect 0 "step    1/1" "${deep[@]}" --layers 4 --max-steps 1 --export-llmc overflow.bin
before=$((384 * 32 + 32 * 32 + 4 * (32 + 32 + 3 * 32 * 32 + 3 * 32 + 32 * 32 + 32 + 32 + 32)))   # up to fcw
all=$((before + 4 * (4 * 32 * 32 + 4 * 32 + 4 * 32 * 32 + 32) + 32 + 32)) fcw=$((4 * 32 * 32))
bytes=$((($(stat -c %s overflow.bin) - 1024) / all))   # of an element
[ $((1024 + bytes * all)) -eq "$(stat -c %s overflow.bin)" ]
verdict $? "the model file has $all elements of $bytes bytes"
head -c $((bytes * fcw)) /dev/zero | tr '\0' '\177' |
    dd of=overflow.bin seek=$((1024 + bytes * (before + 2 * fcw))) oflag=seek_bytes conv=notrunc 2>/dev/null
names_it() {   # RANKS RANK LAYOUT...
    local on=${2:+, on rank $2} command=("${deep[@]}")
    [ "$1" -eq 1 ] || command=("${launch[0]}" -n "$1" "${deep[@]}")
    expect 0 "not finite, update skipped; first in activation fch of layer 2 (" "${command[@]}" --layers 0 --heads 0 \
        --channels 0 --model overflow.bin --max-steps 2 --export-llmc after.bin -o "overflow$*" "${@:3}"
    check "the rank is named (${*:3})" grep -qE "layer 2 \([0-9]+ values\)$on\$" out
    check "the parameters are as they were (${*:3})" cmp overflow.bin after.bin
}
names_it 1 ""
names_it 2 1 --pp 2
names_it 4 0 --pp 2 --pp-schedule interleaved --pp-chunks 2 --zero 3 --dp 2 --recompute block
names_it 2 0 --tp 2
names_it 2 0 --cp 2

# ---- the same for what tokenize writes
contents data >before
expect 64 "--output data: data/manifest.json is there already" "$tokenize" -q --tokenizer bytes --output data others.txt
check "a refused call changes nothing" diff before <(contents data)
expect 0 "data: 7788 training and 6106 validation tokens" "$tokenize" -q --tokenizer bytes --output data --overwrite \
    --val-tokens 6106 numbers.txt
expect 0 "a vocabulary of 260 tokens" "$tokenize" -q --train 260 --output learned numbers.txt
expect 64 "learned/tokenizer.json is there already" "$tokenize" -q --train 270 --output learned numbers.txt
expect 0 "a vocabulary of 270 tokens" "$tokenize" -q --train 270 --output learned --overwrite numbers.txt
echo '{"ctx": "A", "endings": ["b", "c"], "label": 1}' >q.jsonl
expect 0 "1 questions" "$tokenize" --questions hellaswag --output q.bin q.jsonl
expect 64 "q.bin is there already" "$tokenize" --questions hellaswag --output q.bin q.jsonl
expect 0 "1 questions" "$tokenize" --questions hellaswag --output q.bin --overwrite q.jsonl

# ---- of two at once, one writes; the other is refused, whenever it comes
expect 0 "step    1/1" "${run[@]}" --max-steps 1 -o trained
model=trained/step_00000001
held() {   # LOCK MESSAGE COMMAND...: refused while somebody else has the lock
    (exec 8>"$1" && flock 8 && echo "process 1 on a host" >&8 && expect 64 "$2: another run is writing there (process 1 on a host" \
        "${@:3}" && echo "$passed $failed" >counts)
    read -r passed failed <counts
}
mkdir fed
for how in "" --overwrite "--train 270" "--train 270 --overwrite"; do
    held fed/tokenize.lock "--output fed" "$tokenize" -q --output fed $how numbers.txt
done
check "nothing is written by who is refused" [ "$(ls fed)" = tokenize.lock ]
held held.unfinished.lock "--output held" "$train_gpt" export --model "$model" --output held
expect 0 "held: " "$train_gpt" export --model "$model" --output held
# pairs COMMAND...: the same command twice at once, ten times, with @N for the number; one of both ends with 0, the other with 64
pairs() {
    local n first second wrong=
    for n in 0 1 2 3 4 5 6 7 8 9; do
        "${@//@N/$n}" >pair.1 2>&1 & pid=$!
        "${@//@N/$n}" >pair.2 2>&1
        second=$?
        wait $pid
        first=$?
        [ $((first + second)) -eq 64 ] || wrong="$wrong $first and $second: $(cat pair.1 pair.2);"
    done
    nothing_wrong "pairs of ${*:1:4}" "$wrong"
}
pairs "$tokenize" -q --tokenizer bytes --output both@N numbers.txt
check "what they have written" "$tokenize" --verify both?
pairs "$tokenize" -q --train 260 --output words@N numbers.txt
pairs "$train_gpt" export --model "$model" --output exported@N
pairs "$train_gpt" export --model "$model" --to llmc --output exported@N.bin
[ "$(ls -d exported* | wc -l)" -eq 20 ] && [ "$(sha256sum exported?.bin | cut -d' ' -f1 | sort -u | wc -l)" -eq 1 ] &&
    [ "$(sha256sum exported?/model.safetensors | cut -d' ' -f1 | sort -u | wc -l)" -eq 1 ]
verdict $? "the exports are whole, and nothing else is left: $(ls -d exported*)"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
