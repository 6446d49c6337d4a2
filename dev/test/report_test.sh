#!/usr/bin/env bash
# report.html as a person sees it: a run's page at three moments, its numbers beside those of metrics.jsonl, several runs on
# one page, a page after a kill. llmc/report/page_test.cpp has the page's parts. `report_test.sh long`: in two widths of a
# headless browser too.
#
# With PICTURES=FOLDER the pictures stay there, to be looked at.
source "$(dirname "$0")/common.sh"
loss_curve=$(realpath -m "${LOSS_CURVE:-build/$device$variant/loss_curve}")
needs "$train_gpt" "$tokenize" "$loss_curve"
launch=$(realpath scripts/launch.sh)
pictures=$(realpath -m "${PICTURES:-$work/pictures}")
mkdir -p "$pictures"
cd "$work" || exit 70
browser=
if [ "${1:-}" = long ]; then
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
    [ -n "$browser" ] || echo "SKIPPED pictures of the report: no chromium here (apt-get install chromium)"
fi

numbers_as_data 4000 3000
run=("$launch" -n 2 "$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --layers 2 --heads 2 --channels 32
    --seq-len 32 --micro-batch 2 --total-batch 128 --val-every 10 --sample-every 25 --max-steps 60 -o run)

browse() {   # ARGUMENTS...
    timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" "$@" 2>/dev/null
}

# A page in a frame of so many pixels, which says in its title how wide what it holds is and what its loss panel tells.
look() {   # PAGE WIDTH NAME [OPTIONS...]
    local name=$3
    { printf "<!doctype html><body style='margin:0'><iframe style='border:0;width:%dpx;height:2600px' srcdoc=\"" "$2"
        sed 's/&/\&amp;/g; s/"/\&quot;/g; s/<meta http-equiv=.refresh[^>]*>//' "$1"
        printf '"></iframe><script>onload=()=>{const d=document.querySelector("iframe").contentDocument,f=d.querySelector("figure"),
            s=f.querySelector("svg"),b=s.getBoundingClientRect();
            s.dispatchEvent(new PointerEvent("pointermove",{clientX:b.left+b.width*458/480}));
            document.title=["wide",d.documentElement.scrollWidth,"figures",d.querySelectorAll("figure").length,
                "told",f.querySelector("output").textContent].join(" ")}</script>'; } >frame.html
    browse --window-size="$(($2 > 500 ? $2 : 500)),2600" "${@:4}" --dump-dom "file://$PWD/frame.html" | grep -oE '<title>[^<]*' >"$name.title"
    browse --window-size="$(($2 > 500 ? $2 : 500)),2600" "${@:4}" --screenshot="$pictures/$name.png" "file://$PWD/frame.html"
}

moment() {   # NAME
    local name=$1 last
    last=$(grep '"loss"' run/metrics.jsonl | tail -n 1 | sed -E 's/.*"loss":([0-9.e+-]+).*/\1/')
    grep -qF "training <b>$last</b>" run/report.html && [ "$(tail -c 8 run/report.html)" = "</html>" ]
    verdict $? "$name: the last loss $last is in the page: $(grep -oE 'training <b>[^<]*' run/report.html)"
    [ -n "$browser" ] || return 0
    local width
    for width in 390 1300; do
        look run/report.html $width "$name-$width"
        [ "$(stat -c %s "$pictures/$name-$width.png")" -gt 20000 ]
        verdict $? "$name: a picture $width wide"
        grep -qE "wide $width figures [5-9] told .*$last \(step $(grep -c '"loss"' run/metrics.jsonl)\)" "$name-$width.title"
        verdict $? "$name, $width wide: nothing is wider, the panels are there, the loss below the pointer is $last: $(cat "$name-$width.title")"
    done
}

expect 0 "stopped after step 20" "${run[@]}" --pp 2 --stop-after 20
moment begun
expect 0 "stopped after step 40" "${run[@]}" --resume 1 --pp 1 --tp 2 --stop-after 40
moment resumed
expect 0 "step   60/60" "${run[@]}" --resume 1 --pp 1 --skip-norm-z 0.001
moment finished
for part in 'begins' 'goes on after step 20' 'goes on after step 40' 'after step 50' '--max-steps</td><td>60' parameters finished; do
    grep -qF -- "$part" run/report.html
    verdict $? "the page tells: $part"
done
cmp <(grep -o "<td>warning</td>" run/report.html | wc -l) <(grep -c '"warning"' run/report.jsonl)
verdict $? "each warning is on the time line"
# every value that is drawn is one of metrics.jsonl's, and none is left out
python3 - <<'END' 2>problem
import json, re
page = open("run/report.html").read()
figures = json.loads(re.search(r"id='numbers'>(.*?)</script>", page, re.S).group(1))["figures"]
rows = [json.loads(line) for line in open("run/metrics.jsonl")]
def series(key): return [[r["step"], r[key]] for r in rows if isinstance(r.get(key), float | int) and "rewind_from" not in r]
assert figures["loss"][0]["points"] == series("loss") and len(series("loss")) == 60
assert figures["loss"][1]["points"] == series("val_loss")
for key in ("lr", "grad_norm", "tokens_per_s", "mfu", "waiting", "expert_fullest"):
    assert key not in figures or figures[key][0]["points"] == series(key), key
END
verdict $? "the page's numbers are metrics.jsonl's: $(cat problem)"

expect 0 "step   30/30" "$train_gpt" --train-data 'data/train*.bin' --val-every 0 --layers 1 --heads 2 --channels 32 --seq-len 32 \
    --micro-batch 2 --max-steps 30 --sample-every 0 -o other
check "two runs on one page" "$loss_curve" --html run other/metrics.jsonl -o both.html
grep -q "other: training" both.html && grep -q "run: validation" both.html && ! grep -q http-equiv both.html
verdict $? "the page of two runs"
if [ -n "$browser" ]; then
    look both.html 1300 both --blink-settings=preferredColorScheme=0
    grep -qE 'wide 1300 figures [5-9]' both.title
    verdict $? "two runs, in the dark: $(cat both.title)"
fi
expect 64 "--html: -y, -x and levels are for pictures" "$loss_curve" --html run -x hours -o no.html
expect 64 "is to be drawn" "$loss_curve" --html run -o run/metrics.jsonl

# killed at any instant: a whole page is there, and the next start's page knows of both
for after in 0.2 0.5 0.9; do
    "$train_gpt" --train-data 'data/train*.bin' --val-every 0 --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 \
        --max-steps 100000 --sample-every 0 --checkpoint-every 100 -o killed --resume 1 >/dev/null 2>&1 &
    sleep $after
    kill -9 $!
    wait $! 2>/dev/null
    [ ! -e killed/report.html ] || [ "$(tail -c 8 killed/report.html)" = "</html>" ]
    verdict $? "killed after $after s: the page is whole"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
