# For tests of an axis that splits a microbatch (tp, cp): text and configuration for runs of weft train, helpers, and runs on several degrees
# of the axis. To be sourced after prelude.sh.
# shellcheck shell=bash

awk 'BEGIN { srand(7); split("the light and dark of day night sea land was made good very many seed tree fruit", w, " ")
    for (p = 0; p < 300; p++) { n = 3 + int(rand() * 40); for (i = 0; i < n; i++) printf "%s ", w[int(rand() * 16) + 1]; printf "\n\n" } }' >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, document_mask: true, validation_fraction: 0.1}
train: {steps: 8, context: 32, microbatch: 1, tokens_per_step: 128, compute: fp32}
numerics: {mode: exact}
optimizer: {lr: 3e-3}
lr_schedule: {warmup_steps: 2}
validation: {every: 4, samples: 5}
checkpoint: {every: 4}
metrics: {log_freq: 1, tensorboard: false}
check: {replicas_every: 2}
run: {threads: 1}
EOF
# train DIR WORD...: runs weft train and writes its exit status to DIR.status. launch: the same, concurrently with others.
train() {
    timeout -k 5 1500 "$weft" train run.yaml run.dir="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null
    echo $? >"$1.status"
}
launch() { meanwhile "$(ranks_in "$@")" train "$@"; }
# went DIR: the run must have ended with status 0.
went() { [ "$(cat "$1.status")" -eq 0 ] || { fail "$1: exit status $(cat "$1.status"): $(tail -3 "$1.err")"; return 1; }; }
# curve DIR: prints every loss, norm and validation loss with all digits.
curve() {
    sed -n -e 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' \
        -e 's/.*"kind": "validation", "step": \([0-9]*\),.*"loss": \([^,]*\),.*"tokens": \([0-9]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"
}
# same DIR BASE: both runs must have the same curve and the same model file, byte for byte.
same() {
    went "$1" && went "$2" || return
    [ "$(curve "$1")" = "$(curve "$2")" ] || fail "$1 has a different curve than $2: $(diff <(curve "$2") <(curve "$1") | head -4)"
    cmp -s "$1/checkpoints/latest/model.safetensors" "$2/checkpoints/latest/model.safetensors" || fail "$1 writes a different model file than $2"
}
# refused TEXT WORD...: starts a run that must be refused with TEXT in its error. refusals: waits for all of these and checks them.
texts=()
refused() {
    texts+=("$1")
    launch "bad${#texts[@]}" "${@:2}"
}
refusals() {
    local i bad
    together
    for i in "${!texts[@]}"; do
        bad=bad$((i + 1))
        [ "$(cat $bad.status)" -eq 78 ] || fail "\"${texts[i]}\": exit status $(cat $bad.status), expected 78: $(tail -2 $bad.err)"
        grep -qF -- "${texts[i]}" $bad.err || fail "no \"${texts[i]}\" in: $(tail -3 $bad.err)"
    done
}

# degrees AXIS PIECES WORD...: checks that curve, weights and evaluation are the same on one rank, on four along the axis, and on two
# combined with all other axes; and in one run on four ranks, then one, then two. WORDs are for the runs that begin on four ranks; from them
# numerics.AXIS_invariant_up_to=PIECES follows.
degrees() {
    local axis=$1 pieces=$2 key="numerics.$1_invariant_up_to=$2" kept="$1_invariant_up_to: $2"
    shift 2
    train one "$key"
    went one || exit 1
    [ "$(curve one | wc -l)" -eq 11 ] || fail "8 steps and 3 validations make $(curve one | wc -l) records"
    launch four -n 4 "mesh.$axis=4" "$@"
    launch both -n 4 "mesh.$axis=2" "$key" train.recompute=full train.gradient_sync=microbatch "$@"
    meanwhile 4 move "$@"
    launch piped -n 4 mesh.pp=2 "mesh.$axis=2" "$key" pipeline.schedule=zb_h1
    together
    same four one
    # A step sends along the axis what was planned, to the printed precision.
    "$weft" plan four/config.yaml -n 4 run.dir=none | awk '/^work and bytes/ { on = 1 } on && $1 ~ /^0/ && NF > 4 { print $(NF - 3), $(NF - 2); exit }' >planned
    sed -n "s/.*\"sent_$axis\": \([0-9]*\).*/\1/p" four/metrics.jsonl | tail -1 | awk '{ printf "%.2f KiB\n", $1 / 1024 }' | diff planned - ||
        fail "sent_$axis is not what was planned: $(cat planned)"
    same both one
    same piped one
    cmp -s moved/checkpoints/latest/model.safetensors one/checkpoints/latest/model.safetensors || fail "moved ends with other weights"
    "$weft" eval one text.txt >one.eval 2>/dev/null && "$weft" eval four text.txt >four.eval 2>/dev/null && cmp -s one.eval four.eval || fail "weft eval"
}
# The part of `degrees` that moves one run from four ranks to one, then to two.
move() {
    train moved -n 4 "mesh.$axis=4" train.steps=4 lr_schedule.total_steps=8 "$@"
    went moved
    train moved lr_schedule.total_steps=8 train.steps=6
    went moved
    grep -q "$kept" moved/config.yaml || fail "not \"$kept\": $(grep invariant moved/config.yaml)"
    train moved -n 4 "mesh.$axis=2" lr_schedule.total_steps=8
    went moved
}
