#!/bin/bash
# Resuming with another value of a key, for every row of the option table: the bits stay the same, or log and journal report the
# difference, or the run is refused with a reason that names the key. weft audit accepts the run each time.
. "$(dirname "$0")/../support/prelude.sh"
other_values=${WEFT_BINARY_DIR:?}/other_values

letters 60 3 >text.txt
letters 30 4 >more.txt
cat >run.yaml <<EOF
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, rope_factor: 2}
data: {sources: [{path: text.txt, weight: 3, split: paragraphs}, {path: more.txt, weight: 1, split: paragraphs}], cache_dir: cache, validation_fraction: 0.1, audit: true}
train: {steps: 3, context: 16, tokens_per_step: 128, microbatch: 4, compute: fp32}
lr_schedule: {warmup_steps: 1, total_steps: 6}
validation: {samples: 8}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: base}
EOF
# train DIR WORD... : runs weft train; messages are in DIR.err, the exit status in DIR.status.
train() {
    local status=0
    "$weft" train run.yaml run.dir="$1" "${@:2}" >"$1.err" 2>&1 </dev/null || status=$?
    echo $status >"$1.status"
}
events() { sed -n 's/.*"event": "changed", .*"detail": "\(.*\)"}$/\1/p' "$1/journal.jsonl"; }
reads_back() {
    "$weft" config --plain "$1/config.yaml" >"$1.plain" 2>&1 || { fail "$2: config.yaml does not read back: $(cat "$1.plain")"; return; }
    sed 's/  # .*//' "$1/config.yaml" | cmp -s - "$1.plain" || fail "$2: config.yaml reads back as another configuration"
}

train whole train.steps=6 checkpoint.every=3
[ "$(cat whole.status)" -eq 0 ] || { cat whole.err; exit 1; }
train base
[ "$(cat base.status)" -eq 0 ] || { cat base.err; exit 1; }
reads_back base base

# Files that the other values of texts name.
model=base/checkpoints/step-00000003
cp $model/config.json model.config
cp -r $model model.init
cp $model/tokenizer.json bytes2

# ---- every row ----

# bits DIR : the run continued with the same bits; it may have written fewer records, and a rounded model.
curve whole >whole.curve
digest whole >whole.digest
bits() {
    ! curve "$1" | grep -vxFf whole.curve >/dev/null || return 1
    [ "$(curve "$1" | tail -1)" = "$(tail -1 whole.curve)" ] || return 1
    grep -q '  dtype: bf16' "$1/config.yaml" || digest "$1" | cmp -s - whole.digest
}

# judge KEY EFFECT DIR : checks a run that was resumed with another value.
judge() {
    local key=$1 effect=$2 dir=$3 status changed
    status=$(cat "$dir.status")
    changed=$(events "$dir")
    case $status:$effect in
    0:nothing | 0:start) [ -z "$changed" ] && bits "$dir" || fail "$key changes bits, or is reported to: $changed" ;;
    0:sums | 0:content | 0:bits) [ -n "$changed" ] || bits "$dir" || fail "$key changes bits without a report" ;;
    0:measures) grep -q "^$key was .* and is .* now" <<<"$changed" || fail "$key: not reported: $changed" ;;
    69:sums) grep -q "this processor cannot run" "$dir.err" || fail "$key: $(tail -1 "$dir.err")" ;;
    78:*) grep -q "^weft: .*$key\|^weft: ${key%%.*}: .*${key#*.}" "$dir.err" || fail "$key is refused with another reason: $(grep weft: "$dir.err")" ;;
    *) fail "$key ($effect): exit status $status: $(tail -1 "$dir.err")" ;;
    esac
    case $status:$effect in 0:curve | 0:run) fail "$key is changed without permission" ;; esac
    [ "$status" -ne 0 ] || reads_back "$dir" "$key"
    "$weft" audit "$dir" >"$dir.audit" 2>&1 || grep -q '  audit: false' "$dir/config.yaml" || fail "$key: weft audit: $(tail -1 "$dir.audit")"
}

# Two at a time: each row in its own directory, judged when all have ended.
"$other_values" base/config.yaml >rows || fail "other_values"
[ "$(wc -l <rows)" -gt 90 ] || fail "only $(wc -l <rows) rows"
! grep -P '\tunknown\t' rows || fail "rows without a declared effect"
one() {
    cp -r base "row.$1"
    # The row's word comes last and so takes precedence.
    train "row.$1" train.steps=6 "$1=$2"
}
while IFS=$'\t' read -r key effect value; do
    case $key in run.dir | run.overwrite) continue ;; esac # another run: nothing is resumed
    one "$key" "$value" &
    [ "$(jobs -r | wc -l)" -lt 2 ] || wait -n
done <rows
wait
while IFS=$'\t' read -r key effect value; do
    [ ! -e "row.$key" ] || judge "$key" "$effect" "row.$key"
done <rows

# ---- with run.allow_changes ----

# Changes of the curve are allowed if run.allow_changes names them, and are reported; here all at once. Changes that would make
# it another run are never allowed.
words=() keys=
while IFS=$'\t' read -r key effect value; do
    # Values that the family or another key forbids are refused for that reason, allowed or not.
    [ "$effect" = curve ] && [ "${value:0:1}" != "[" ] && grep -q "which would change the curve" "row.$key.err" && words+=("$key=$value") && keys="$keys${keys:+, }$key"
    [ "$effect" = run ] || continue
    train base "$key=$value" "run.allow_changes=[$key]"
    refused="^weft: .*$key.*\(another run\|not a multiple\|model\|: set train\)\|^weft: model: the family .* no key for another ${key#*.} than its own"
    [ "$(cat base.status)" -eq 78 ] && grep -q "$refused" base.err || fail "$key, with run.allow_changes: $(tail -1 base.err)"
done <rows
cp -r base leave
train leave train.steps=6 "${words[@]}" "run.allow_changes=[$keys, data, mixture]"
[ "$(cat leave.status)" -eq 0 ] || fail "with run.allow_changes: exit status $(cat leave.status): $(tail -1 leave.err)"
for word in "${words[@]}"; do
    grep -q "${word%%=*} was [^;]* and is [^;]* now (another curve)" <<<"$(events leave)" || fail "${word%%=*}, with run.allow_changes: not reported: $(events leave)"
done

# ---- values count, not their spelling ----

# goes DIR WORD... : resumes a copy of base with WORDs: it has the same bits and reports no change.
goes() {
    cp -r base "$1"
    train "$1" train.steps=6 "${@:2}"
    [ "$(cat "$1.status")" -eq 0 ] || { fail "$1: $(tail -1 "$1.err")"; return; }
    bits "$1" || fail "$1: different bits"
    [ -z "$(events "$1")" ] || fail "$1: reported as a change: $(events "$1")"
    "$weft" audit "$1" >"$1.audit" 2>&1 || fail "$1: weft audit: $(tail -1 "$1.audit")"
}
two() { echo "data.sources=[{path: text.txt, weight: $1, split: paragraphs}, {path: more.txt, weight: $2, split: paragraphs}]"; }
goes shares "$(two 0.75 0.25)"
goes open train.compute=auto train.microbatch=0 train.tokens_per_step=0 model.num_key_value_heads=1 model.head_dim=0 model.max_position_embeddings=16
goes explicit train.loss_rows=64 model.head_dim=8 model.vocab_size=258
cp -r base other
train other train.steps=6 "$(two 1 1)"
[ "$(cat other.status)" -eq 78 ] || fail "another mixture: exit status $(cat other.status)"
has other.err "the mixture is not what the checkpoint was trained with (3,1, now 1,1)"

# Values left on auto stay those of the run, however many ranks resume it: no sample is skipped or repeated.
if command -v "$launcher" >/dev/null; then
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    train left train.microbatch=0 train.tokens_per_step=0
    train left train.microbatch=0 train.tokens_per_step=0 train.steps=5 -n 2
    [ "$(cat left.status)" -eq 0 ] || fail "on 2 ranks: $(tail -1 left.err)"
    grep -q "the order of sums was fast over 1 data-parallel rank and is fast over 2 data-parallel ranks once a step now" <<<"$(events left)" ||
        fail "on 2 ranks: not reported: $(events left)"
    train left train.microbatch=0 train.tokens_per_step=0 train.steps=6 pipeline.microbatches=8
    [ "$(cat left.status)" -eq 0 ] || fail "in 8 microbatches: $(tail -1 left.err)"
    grep -q "train.microbatch was [0-9]* and is [0-9]* now (last bits)" <<<"$(events left)" || fail "in 8 microbatches: not reported: $(events left)"
    "$weft" audit left >left.audit 2>&1 || fail "on other ranks: weft audit: $(tail -1 left.audit)"
    has left.audit "each sample from 0 to 767 was used exactly once"
    train left train.microbatch=0 train.tokens_per_step=0 train.steps=9 -n 3
    [ "$(cat left.status)" -eq 78 ] || fail "on 3 ranks: exit status $(cat left.status)"
    has left.err "train.tokens_per_step is 2048"
fi

conclude "each row of the option table has the effect that it declares"
