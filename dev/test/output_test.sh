#!/usr/bin/env bash
# What a person looks at: lines of progress, MFU, the picture of the losses, and that nothing in data reaches the terminal
# but as text.
source "$(dirname "$0")/common.sh"
loss_curve=$(realpath -m "${LOSS_CURVE:-build/$device$variant/loss_curve}")
needs "$train_gpt" "$tokenize" "$loss_curve"
cd "$work" || exit 70

numbers_as_data 3000 3000
run=("$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --layers 1 --heads 2 --channels 32
    --seq-len 32 --micro-batch 2 --val-every 0 --sample-every 0)

# ---- lines of progress: few enough to read, with all that is asked of a run
began=$SECONDS
expect 0 "step  300/300" "${run[@]}" --max-steps 300 -o one
took=$((SECONDS - began))
grep '^step' out | sed -E 's/^step +([0-9]+).*/\1/' >told
[ "$(head -n 10 told | xargs)" = '1 2 3 4 5 6 7 8 9 10' ] && [ "$(tail -n 1 told)" = 300 ]
verdict $? "the first ten steps and the last one are told: $(xargs <told)"
# between them one every 5 s of the time that the run took
[ "$(wc -l <told)" -le $((11 + (took + 1) / 5)) ] && [ "$(grep -c '"step_ms"' one/metrics.jsonl)" -eq 300 ]
verdict $? "lines of progress closer than 5 s in a run of $took s: $(xargs <told)"
for part in 'loss [0-9.]+' 'lr [0-9.e-]+' 'ETA [0-9hms]+' '[0-9.]+ ms' '[0-9]+ tok/s' '[0-9.]+% [a-z0-9]+ MFU' '[0-9]+ MiB$'; do
    check "a line of progress with $part" grep -qE "^step  300/300 \|.* $part" out
done
expect 0 "step  300/300" "${run[@]}" --max-steps 300 --log-every 100
[ "$(grep '^step' out | cut -d/ -f1 | xargs)" = "step 1 step 100 step 200 step 300" ]
verdict $? "--log-every 100: $(grep '^step' out | cut -d/ -f1 | xargs)"
sed -nE 's/.*"mfu":([0-9.e+-]+).*/\1/p' one/metrics.jsonl | awk '{ n++; if ($1 > 1 || $1 <= 0) bad = 1 } END { exit bad || n != 300 }'
verdict $? "MFU above 100%: $(sed -nE 's/.*"mfu":([0-9.e+-]+).*/\1/p' one/metrics.jsonl | sort -g | tail -n 1)"
if [ "$device" = cpu ]; then check "a measured peak is called an estimate" grep -qF "(measured, an estimate)" out; fi

# ---- recipes: what a schedule does is said, what is probably not meant is told
for part in 'lr (q + (1 - q) (1 + cos(pi x)) / 2)' 'lr until 80% of all steps' '--warmup and --final-lr-frac are ignored' \
    "where llm.c counts those of every rank"; do
    tr -s ' \n' ' ' < <("$train_gpt" --help) | has -F -- "$part"
    verdict $? "--help does not say: $part"
done
"$train_gpt" --help | has "log-gpu-every"
verdict $((! $?)) "--help shows an option that is not served"
expect 0 "warning: the cosine schedule never falls: --final-lr-frac is 1" "${run[@]}" --max-steps 1
expect 0 "warning: the wsd schedule never falls" "${run[@]}" --max-steps 1 --schedule wsd
expect 0 "warning: --warmup 1 is ignored by --schedule constant" "${run[@]}" --max-steps 1 --schedule constant --warmup 1
for schedule in "--final-lr-frac 0.1" "--final-lr-frac 0" "--schedule constant"; do
    expect 0 "step    1/1" "${run[@]}" --max-steps 1 $schedule
    grep -q 'warning:' out
    verdict $((! $?)) "a warning of $schedule: $(grep warning: out)"
done

# ---- data by name
expect 64 "--data local: there are no training shards in data/local" "$train_gpt" --data local
mkdir data/local data/other && cp data/*.bin data/manifest.json data/local
expect 0 "| --train-data          | data/local/ " "${run[@]:0:1}" --data local "${run[@]:5}" --max-steps 1
expect 0 "| --val-data            | data/val*.bin" "${run[@]:0:1}" --data local "${run[@]:3}" --max-steps 1
expect 0 "| --train-data          | ./data/ " "${run[@]:0:1}" --data ./data "${run[@]:5}" --max-steps 1
expect 64 "there are: local." "$train_gpt" --data lokal
rm -r data/local data/other

# ---- pictures: several runs in one, over no input
expect 0 "step    9/9" "${run[@]}" --max-steps 9 --val-every 3 -o 'two <&>'
check "two runs are drawn" "$loss_curve" one 'two <&>/metrics.jsonl' 'a "level" <=2.5' -o both.svg
[ "$(grep -c "class='mean' stroke" both.svg)" -eq 4 ] && [ "$(grep -c "<circle" both.svg)" -eq 5 ] &&
    grep -qF 'two &lt;&amp;&gt;' both.svg && grep -qF '>one<' both.svg && grep -qF 'a "level" &lt; 2.5' both.svg
verdict $? "two runs in one picture: $(grep -c "class='mean'" both.svg) lines"
[ "$(grep "class='mean' stroke" both.svg | grep -oE "stroke='[^']*'" | sort -u | wc -l)" -eq 2 ]
verdict $? "a color for each run"
if command -v python3 >/dev/null; then
    check "the picture is well-formed" python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' both.svg
fi
# a level's label is last a text without an outline, which viewers that do not know paint-order would draw over it
! grep -l paint-order both.svg "$OLDPWD"/docs/*.svg && grep -A 1 "class='halo'" both.svg | tail -n 1 | has "class='level'" &&
    ! grep -oE 'text\.level *\{[^}]*\}' both.svg | has stroke
verdict $? "labels of levels are drawn over their outline: $(grep "class='halo'" both.svg)"
# panels of several quantities over another axis; steps that are told apart by nothing but their number
"$loss_curve" one 'two <&>' -y tokens/s,norm,lr,loss -x tokens -o panels.svg
[ "$(grep -c "class='title'" panels.svg)" -eq 4 ] && [ "$(grep -c '<polyline' panels.svg)" -eq 14 ] && grep -q '>tokens</text>' panels.svg
verdict $? "four panels: $(grep -c "class='title'" panels.svg), $(grep -c '<polyline' panels.svg) lines"
[ "$(grep -oE "class='title'[^<]*" panels.svg | sed 's/.*>//' | paste -sd,)" = "loss (nats per token),learning rate,gradient norm,tokens per second" ]
verdict $? "the titles of the panels: $(grep "class='title'" panels.svg)"
seq 1 20 | sed 's/.*/{"step":&,"loss":1,"grad_norm":1,"lr":&e-3,"tokens_per_s":1000,"step_ms":1800000}/' >even.jsonl
check "even.jsonl -y lr -x hours" "$loss_curve" even.jsonl -y lr -x hours -o hours.svg
# 20 steps of half an hour, with a learning rate of step / 1000: each label stands where the step is that it is said of
tr '>' ' ' <hours.svg | awk -F"'" '
    /^<text .*anchor=.middle. [0-9]+</ { split($0, label, " "); across[label[length(label)] + 0] = $2 }
    /^<text .*anchor=.end. [0-9.]+</ { split($0, label, " "); up[label[length(label)] * 1000] = $4 - 4 }   # its middle
    /^<polyline/ { steps = split($6, point, " ") }
    function far(a, b) { return a - b > 0.1 || b - a > 0.1 }
    END {
        for (i = 1; i <= steps; i++) {
            split(point[i], at, ",")
            if (i / 2 in across) { seen++; bad += far(at[1], across[i / 2]) }
            if (i in up) { seen++; bad += far(at[2], up[i]) }
        }
        exit !(steps == 20 && seen >= 6 && !bad)
    }' && grep -q '>hours</text>' hours.svg
verdict $? "an axis of hours: $(grep polyline hours.svg)"
check "even.jsonl -x tokens" "$loss_curve" even.jsonl -x tokens -o tokens.svg
grep -q '>30M</text>' tokens.svg
verdict $? "an axis of tokens, 36 million: $(grep -oE '>[0-9.]+[kM]?</text>' tokens.svg | tr '\n' ' ')"
# the mean of a noisy curve, in time that grows as the steps do, not as their square: of twenty times as many the
# processor needs less than a hundred times as much
processor_ms() {   # COMMAND...: the time it takes of a processor, whatever else the machine does
    local TIMEFORMAT='%U %S'
    { time "$@" >/dev/null 2>&1; } 2>&1 | awk '{ printf "%d", ($1 + $2) * 1000 + 1 }'
}
for steps in 10000 200000; do
    awk -v n=$steps 'BEGIN { for (i = 1; i <= n; i++) printf "{\"step\":%d,\"loss\":%d}\n", i, i % 2 ? 2 : 4 }' >$steps.jsonl
done
few_ms=$(processor_ms "$loss_curve" 10000.jsonl -o few.svg) many_ms=$(processor_ms "$loss_curve" 200000.jsonl -o many.svg)
[ -s many.svg ] && [ "$many_ms" -lt $((100 * few_ms)) ]
verdict $? "10000 steps take $few_ms ms, 200000 take $many_ms"
grep "class='mean' stroke='#1f5fb4' points" many.svg | grep -oE ',[0-9.]+ ' | sed -n '1000,199000p' | tr -d ', ' |
    awk -v height="$(sed -nE "1s/.*height='([0-9]+)'.*/\1/p" many.svg)" '
        { if (NR == 1 || $1 < least) least = $1; if ($1 > most) most = $1 } END { exit !(NR > 0 && most - least < height / 500) }'
verdict $? "the running mean of an even noise is level"
printf '{"step":1,"loss":1}\n' >bare.jsonl
{ cat even.jsonl; echo '{"step":3,"rewind_from":5,"loss":99,"grad_norm":99,"skipped_samples":8}'; } >rewound.jsonl
"$loss_curve" even.jsonl -x hours -o even.svg >/dev/null && "$loss_curve" rewound.jsonl -x hours -o rewound.svg >/dev/null &&
    cmp <(sed 's/even//g' even.svg) <(sed 's/rewound//g' rewound.svg)
verdict $? "a line that tells of a rewind changes no curve"
expect 65 "bare.jsonl:1: no tokens_per_s and step_ms" "$loss_curve" bare.jsonl -x hours -o new.svg
expect 65 "bare.jsonl holds no grad_norm" "$loss_curve" bare.jsonl -y loss,norm -o new.svg
expect 64 "-y loss,mfu: expected loss, lr, norm or tokens/s" "$loss_curve" one -y loss,mfu -o new.svg
expect 64 "-x days: expected steps, tokens or hours" "$loss_curve" one -x days -o new.svg
expect 64 "bigram=2.5: a level of losses, and -y lr has no losses" "$loss_curve" one bigram=2.5 -y lr -o new.svg
cp -r one before
expect 64 "-o one/metrics.jsonl: is one/metrics.jsonl, which is to be drawn" "$loss_curve" one -o one/metrics.jsonl
ln one/metrics.jsonl linked.svg
expect 64 "-o linked.svg: is one/metrics.jsonl" "$loss_curve" one -o linked.svg
expect 64 "no -o: where the picture goes is not said" "$loss_curve" one/metrics.jsonl new.svg
expect 64 "-o one: is a folder, expected the name of a file" "$loss_curve" one -o one
expect 64 "no run is given" "$loss_curve" -o new.svg
expect 74 "none/metrics.jsonl" "$loss_curve" none/metrics.jsonl -o new.svg
expect 74 "one/none" "$loss_curve" one -o one/none/new.svg
check "nothing was written over" diff -r before one

# ---- TensorBoard: a run that was cut and resumed is one curve
expect 0 "stopped after step 5 of 9" "${run[@]}" --max-steps 9 --stop-after 5 --val-every 3 --tensorboard -o board
expect 0 "step    9/9" "$train_gpt" --resume 1 -o board
check "the event file goes on" test "$(grep -ao brain.Event:2 board/events.out.tfevents.train_gpt | wc -l)" -eq 1
check "an event a step and validation" test "$(grep -ao 'tokens_per_s\|val_loss' board/events.out.tfevents.train_gpt | wc -l)" -eq 13
said=$("${PYTHON:-python3}" - board 2>&1 <<'END'
import sys
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(69)
run = EventAccumulator(sys.argv[1])
run.Reload()
steps = {tag: [event.step for event in run.Scalars(tag)] for tag in run.Tags()["scalars"]}
assert steps["loss"] == steps["lr"] == steps["grad_norm"] == steps["tokens_per_s"] == list(range(1, 10)), steps
assert steps["val_loss"] == [0, 3, 6, 9], steps
END
)
status=$?
case $status in
69 | 127) echo "SKIPPED TensorBoard reading an event file: python3 has no tensorboard" ;;
*) verdict $status "TensorBoard reads the event file: $said" ;;
esac
rm -r board

# ---- text is text: escapes, NULs and broken UTF-8 are shown
escape=$'\x1b'
no_controls() { ! grep -aqP '[\x00-\x08\x0b-\x1f\x7f]' "$1"; }
printf '\x1b[2J\x00\xff\n%.0s' $(seq 1 700) >controls.txt
expect 0 "400 validation tokens" "$tokenize" --format text --tokenizer bytes --quiet --output controls --val-tokens 400 controls.txt
expect 0 '\x1b[2J\x00\xff' "${run[@]}" --train-data 'controls/train*.bin' --val-data 'controls/val*.bin' --max-steps 60 --lr 0.01 \
    --sample-every 60 --sample-tokens 40 --temperature 0
check "a sample is printable" no_controls out
check "the very bytes are decoded to a pipe" cmp <("$tokenize" --decode controls/val_000000.bin | head -c 41 | tail -c 28) <(head -c 28 controls.txt)
if command -v script >/dev/null; then
    script -qec "'$tokenize' --decode controls/val_000000.bin" /dev/null </dev/null | tr -d '\r' >out
    grep -qF '\x1b[2J\x00\xff' out && no_controls out
    verdict $? "decoded to a terminal: $(head -n 2 out | od -c | head -n 3)"
else
    echo "SKIPPED decoding to a terminal: no script"
fi
printf '{"step":1,"loss":1}\n%s[2Jx\0y\n' "$escape" >bad.jsonl
expect 65 'bad.jsonl:2: not a JSON object with a "step": \x1b[2Jx\x00y' "$loss_curve" bad.jsonl -o new.svg
check "messages of loss_curve are printable" no_controls out
printf 'IQ== 0\nI%sg== one\n' "$escape" >ranks.tiktoken
expect 65 'I\x1bg== one' "$tokenize" -q --output none --tokenizer ranks.tiktoken numbers.txt
check "messages of tokenize are printable" no_controls out
expect 74 '--train-data \x1b[2J*: no file matches' "${run[@]}" --train-data "${escape}[2J*"
check "messages of train_gpt are printable" no_controls out
sed "s/\"name\": \"bytes\"/\"name\": \"\\\\u001b[2J\"/" data/manifest.json >edited && mv edited data/manifest.json
expect 0 'tokenizer \x1b[2J' "$tokenize" --verify data

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
