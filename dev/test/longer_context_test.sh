#!/usr/bin/env bash
# A model with rotary positions goes on with longer sequences, under each scaling of its frequencies: as a new run, resumed
# and branched off. Cut and resumed it is the uncut run, its folder says what it is, and it generates past its old end.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"

numbers_as_data 9000 4000
run=(--train-data "$work/data/*train*.bin" --val-data "$work/data/*val*.bin" --micro-batch 1 --lr 1e-2 --warmup 0
    --schedule constant --val-every 2 --val-max-batches 2 --sample-every 0)
llama=(--layers 1 --heads 2 --channels 32 --norm rms --positions rotary --mlp swiglu --bias 0)
train() {   # FOLDER OPTIONS...
    "$train_gpt" "${run[@]}" --output-dir "$work/$1" "${@:2}" >>"$work/$1.log" 2>&1
    verdict $? "$1 ${*:2}: $(tail -n 3 "$work/$1.log")"
}
config() { tr -d ' \n' <"$work/$1/config.json"; }   # CHECKPOINT
says() {   # CHECKPOINT TEXT...: config.json has all of them; !TEXT: not that
    local text
    for text in "${@:2}"; do
        if [ "${text:0:1}" = '!' ]; then ! config "$1" | has -F -- "${text:1}"; else config "$1" | has -F -- "$text"; fi
        verdict $? "$1/config.json: expected $text: $(config "$1")"
    done
}
same_weights() {   # CHECKPOINT CHECKPOINT
    local file
    for file in "$work/$1"/{model,optimizer}-*.safetensors; do cmp "$file" "$work/$2/${file##*/}" || return 1; done
}
last_loss() { sed -nE 's/^val loss ([0-9.]+)( .*)?$/\1/p' "$work/$1.log" | tail -n 1; }

train short "${llama[@]}" --seq-len 256 --max-steps 4
says short/step_00000004 '"max_position_embeddings":256' '!rope_scaling' '!rope_parameters'

# a prompt longer than the model was; it reads only the end of it
head -c 400 "$work/numbers.txt" >"$work/prompt"
long_prompt=(--prompt-file "$work/prompt" --stop-at-end 0 --temperature 0)
expect 0 "tokens, the model sees 256" "$train_gpt" generate --model "$work/short" "${long_prompt[@]}" --tokens 1

# continues NAME OPTIONS... -- TEXT...: as a new run, of 4 steps; the texts are in config.json
continues() {
    local name=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    train "$name" --model "$work/short" --seq-len 1024 --max-steps 4 "${options[@]}"
    grep -q 'rotary positions change: seq-len 1024 (until now 256)' "$work/$name.log"
    verdict $? "$name: the change is said"
    says "$name/step_00000004" '"max_position_embeddings":1024' "${@:2}"
    train "$name-cut" --model "$work/short" --seq-len 1024 --max-steps 4 --stop-after 2 "${options[@]}"
    train "$name-cut" --resume
    check "$name: resumed equals uncut" same_weights "$name/step_00000004" "$name-cut/step_00000004"
    check "$name: resumed validates alike" [ "$(last_loss "$name")" = "$(last_loss "$name-cut")" ]
    [ "$(grep -c 'rotary positions change' "$work/$name-cut.log")" -eq 1 ]
    verdict $? "$name: a resume changes nothing"
    check "$name: export" "$train_gpt" export --model "$work/$name" --output "$work/$name-exported"
    says "$name-exported" '"max_position_embeddings":1024' "${@:2}"
    expect 0 "val loss $(last_loss "$name")" "$train_gpt" evaluate --model "$work/$name-exported" \
        --val-data "$work/data/*val*.bin" --val-max-batches 2
    expect 0 "400 tokens written" "$train_gpt" generate --model "$work/$name" "${long_prompt[@]}" --tokens 400
    ! grep -aq "tokens, the model sees" "$work/out"
    verdict $? "$name: it reads a prompt past its old end: $(grep -a "the model sees" "$work/out")"
}
continues none -- '!rope_scaling'
continues theta --rope-theta 80000 -- '"rope_theta":80000' '!rope_scaling'
continues linear --rope-scaling linear --rope-factor 4 -- '"rope_scaling":{"rope_type":"linear","factor":4.0}'
continues llama3 --rope-scaling llama3 --rope-factor 4 -- '"rope_scaling":{"rope_type":"llama3","factor":4.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":256}'
continues yarn --rope-scaling yarn --rope-factor 4 -- '"rope_scaling":{"rope_type":"yarn","factor":4.0,"beta_fast":32.0,"beta_slow":1.0,"original_max_position_embeddings":256}'
[ "$(for name in none theta linear llama3 yarn; do cat "$work/$name"/step_00000004/model-*.safetensors | sha256sum; done | sort -u | wc -l)" -eq 5 ]
verdict $? "each scaling trains other weights"

# a scaled model keeps what it has, takes another value of it, or begins another scaling with its defaults
train kept --model "$work/llama3" --max-steps 1
says kept/step_00000001 '"max_position_embeddings":1024' '"original_max_position_embeddings":256' '"factor":4.0'
train longer --model "$work/llama3" --max-steps 1 --seq-len 2048 --rope-scaling llama3 --rope-factor 8 --rope-high-freq-factor 5
says longer/step_00000001 '"max_position_embeddings":2048' '"original_max_position_embeddings":256' '"factor":8.0' '"high_freq_factor":5.0'
train linear-then --model "$work/llama3" --max-steps 1 --rope-scaling linear --rope-factor 3
says linear-then/step_00000001 '"rope_scaling":{"rope_type":"linear","factor":3.0}'
train none-then --model "$work/llama3" --max-steps 1 --rope-scaling none
says none-then/step_00000001 '!rope_scaling'
train shorter --model "$work/llama3" --max-steps 1 --seq-len 64
says shorter/step_00000001 '"max_position_embeddings":1024'

# the same run goes on, with its optimizer; another one branches off
cp -r "$work/short" "$work/resumed"
train resumed --resume --seq-len 1024 --rope-scaling llama3 --rope-factor 4 --max-steps 8
says resumed/step_00000008 '"max_position_embeddings":1024' '"original_max_position_embeddings":256' '"factor":4.0'
cp -r "$work/short" "$work/resumed-cut"
train resumed-cut --resume --seq-len 1024 --rope-scaling llama3 --rope-factor 4 --max-steps 8 --stop-after 6
train resumed-cut --resume
check "a run made longer, cut and resumed, equals the uncut one" same_weights resumed/step_00000008 resumed-cut/step_00000008
# another scaling leaves the recorded numbers of the run's behind
cp -r "$work/resumed" "$work/resumed-none"
train resumed-none --resume --rope-scaling none --max-steps 9
says resumed-none/step_00000009 '"max_position_embeddings":1024' '!rope_scaling'
train resumed-none --resume --max-steps 10
says resumed-none/step_00000010 '!rope_scaling'
cp -r "$work/resumed" "$work/resumed-linear"
expect 64 "--rope-scaling without a --rope-factor above 1" "$train_gpt" --output-dir "$work/resumed-linear" --resume --rope-scaling linear --max-steps 9
train resumed-linear --resume --rope-scaling linear --rope-factor 8 --max-steps 9
says resumed-linear/step_00000009 '"rope_scaling":{"rope_type":"linear","factor":8.0}'
train back --branch-from "$work/resumed" --seq-len 256 --max-steps 10
says back/step_00000010 '"max_position_embeddings":1024' '"factor":4.0'
scripts/launch.sh -n 2 "$train_gpt" "${run[@]}" --branch-from "$work/short" --seq-len 1024 --rope-scaling llama3 \
    --rope-factor 4 --tp 2 --max-steps 5 --output-dir "$work/two" >"$work/two.log" 2>&1
verdict $? "branched off on two ranks: $(tail -n 3 "$work/two.log")"
says two/step_00000005 '"max_position_embeddings":1024' '"original_max_position_embeddings":256' '"factor":4.0'

# models of this program alone say the same in their own way
train own --layers 1 --heads 2 --channels 32 --positions rotary --seq-len 64 --max-steps 1
train own-longer --model "$work/own" --seq-len 256 --rope-scaling llama3 --rope-factor 2.5 --max-steps 1
says own-longer/step_00000001 '"model_type":"train_gpt"' '"n_positions":256' '"rope_scaling":"llama3"' '"rope_factor":2.5' '"rope_original_len":64'

# refused
train gpt2 --layers 1 --heads 2 --channels 32 --seq-len 64 --max-steps 1
train_refused=("$train_gpt" "${run[@]}" --output-dir "$work/refused" --max-steps 1)
expect 64 "A model with --positions rotary can be continued with a longer --seq-len" "${train_refused[@]}" --model "$work/gpt2" --seq-len 128
expect 64 "--rope-scaling linear: the model in $work/gpt2/step_00000001 has none" "${train_refused[@]}" --model "$work/gpt2" --rope-scaling linear --rope-factor 2
expect 64 "--rope-scaling with learned positions" "${train_refused[@]}" --layers 1 --heads 2 --channels 32 --rope-scaling linear --rope-factor 2
expect 64 "--rope-scaling without a --rope-factor above 1" "${train_refused[@]}" --model "$work/short" --rope-scaling linear
expect 64 "--rope-scaling without a --rope-factor above 1" "${train_refused[@]}" "${llama[@]}" --rope-scaling llama3
expect 64 "--rope-factor 4 without --rope-scaling" "${train_refused[@]}" --model "$work/short" --rope-factor 4
expect 64 "without --rope-scaling llama3" "${train_refused[@]}" --model "$work/short" --rope-scaling linear --rope-factor 4 --rope-original-len 256
expect 64 "--rope-low-freq-factor 4 --rope-high-freq-factor 4" "${train_refused[@]}" --model "$work/short" --rope-scaling llama3 --rope-factor 4 --rope-low-freq-factor 4
expect 64 "--rope-scaling dynamic: expected one of none|linear|llama3|yarn" "${train_refused[@]}" --model "$work/short" --rope-scaling dynamic
expect 64 "a training that continues this model with a longer one" "$train_gpt" evaluate --model "$work/short" --val-data "$work/data/*val*.bin" --seq-len 512
check "a refused run leaves nothing" [ ! -e "$work/refused/options.json" ]

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
