#!/bin/bash
# Run directories and checkpoints from before keys were renamed: they resume with the same bits, and are compared, reported and inspected. An
# old name in a user's file or on a command line is an error with the new one.
. "$(dirname "$0")/../support/prelude.sh"
reseal=${WEFT_BINARY_DIR:?}/reseal

letters 60 3 >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, chat_loss_on: all}
train: {steps: 6, context: 16, microbatch: 2, tokens_per_step: 128, rampup_start: 32, rampup_tokens: 100, compute: fp32, mtp_depth: 2, mtp_loss_weight: 0.5, ep_buffer_factor: 2}
numerics: {mode: exact, tp_invariant_up_to: 2, cp_invariant_up_to: 4}
mesh: {cp_comm: all_gather}
lr_schedule: {kind: wsd, warmup_steps: 2, warmup_from: 0.1, total_steps: 8, decay_ratio: 0.5, min_factor: 0.1, exponent: 0.25, cycle_length: 0.5, theta: 2}
checkpoint: {every: 3}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
EOF

# What an older weft wrote for this configuration, with the old name of every renamed key (it was run as run.dir=old).
old=$WEFT_SOURCE_DIR/tests/program/old_keys.yaml
for name in chat_learn batch_start batch_warmup expert_capacity multi_token multi_token_kind multi_token_weight numerics canonical_tp canonical_cp context; do
    grep -q "^  $name: " "$old" || fail "old_keys.yaml has no $name"
done
# wrote FILE CHECKPOINT: as if an older weft had saved the configuration of FILE in it.
wrote() {
    local json
    json=$(sed 's/  # .*//; s/\\/\\\\/g; s/"/\\"/g; s/$/\\n/' "$1" | tr -d '\n')
    sed -i '/^  "config": /,$d' "$2/state.json"
    printf '  "config": "%s"\n}' "$json" >>"$2/state.json"
    "$reseal" "$2" state.json || fail "reseal $2"
}
changed() { grep '"event": "changed"' "$1/journal.jsonl"; }

# ---- resume ----
exits 0 train run.yaml run.dir=whole
exits 0 train run.yaml run.dir=part train.steps=3
cp -r part newer
wrote "$old" part/checkpoints/step-00000003
cp "$old" part/config.yaml
exits 0 train run.yaml run.dir=part
has err "resumed after step 3"
[ "$(curve part)" = "$(curve whole)" ] && [ "$(digest part)" = "$(digest whole)" ] || fail "a checkpoint with old keys resumes with other bits"
! changed part || fail "a checkpoint with old keys is another configuration"
# Not by luck: without them it is another one.
sed '/^  multi_token\|^  batch_\|^  numerics: \|^  canonical_\|^  chat_learn/d; /^schedule:/,/^  theta:/d' "$old" >without.yaml
cp -r newer without
wrote without.yaml without/checkpoints/step-00000003
exits 78 train run.yaml run.dir=without
has err "train.mtp_depth was 0 when the checkpoint was made and is 2 now"

# ---- config.yaml of a run ----
exits 0 config --plain whole
cp out plain
cp "$old" part/config.yaml
exits 0 config --plain part
sed 's/^  dir: old$/  dir: whole/' out | diff plain - >diff.out || fail "config of a run with old keys: $(head -5 diff.out)"
exits 0 compare whole part
has out "no figure differs in 6 logged steps"
has out "no bit depends on it: run.dir"
exits 0 inspect --groups whole
cp out groups
exits 0 inspect --groups part
cmp -s out groups || fail "groups of a run with old keys"
exits 0 data prune part --older-than 0
grep -q 'kept: used by part' out || fail "data prune of a run with old keys: $(cat out)"
for run in whole part; do
    sed -i 's/^  kind: wsd/  kind: range/' $run/config.yaml
    exits 0 report $run
    grep -qi 'learning-rate range test' $run/report.html || fail "no range test in the report of $run"
done

# ---- keys that only a newer weft knows ----
sed 's/^  stop_after_bad: .*/&\n  speed: 2/' newer/config.yaml >newer.yaml
wrote newer.yaml newer/checkpoints/step-00000003
cp -r newer allowed
exits 78 train run.yaml run.dir=newer
has err "the checkpoint has keys that this weft does not know, which may change the curve: train.speed: 2; go on with the weft that wrote it, or set run.allow_changes=[unknown]"
exits 0 train run.yaml run.dir=allowed run.allow_changes='[unknown]'
changed allowed | grep -qF "keys that this weft does not know are dropped: train.speed: 2 (another curve)" || fail "unknown keys are dropped in silence"
! grep -q '  speed: 2' allowed/checkpoints/latest/state.json || fail "an unknown key is saved again"
cp newer.yaml newer/config.yaml
exits 78 inspect --groups newer
has err "newer/config.yaml: keys that this weft does not know: train.speed: 2"
exits 0 compare whole newer
grep -qE '^unknown keys +none +train.speed: 2 +perhaps another curve$' out || fail "compare with a run that has unknown keys: $(cat out)"

# ---- a user's file and command line ----
# refused OLD VALUE WORDS: the error in a file and of a word.
refused() {
    local section=${1%%.*} new
    new=$(sed 's/.*called \([^ ,]*\) now.*/\1/' <<<"$3")
    printf 'run: {dir: x}\n%s:\n  %s: %s\n' "$section" "${1#*.}" "$2" >user.yaml
    exits 78 config user.yaml
    has err "user.yaml:3:3: $1: $3"
    exits 78 config run.yaml "$1=$2"
    has err "command line: $1: $3"
    exits 78 train run.yaml run.dir=none "run.allow_changes=[$1]"
    has err "run.allow_changes: $1: the key is called $new now"
    exits 2 config "$1=$2" run.dir=none
    has err "the configuration file is missing"
    exits 0 help "$1"
    grep -q "^ *$new=" out || fail "help $1: $(cat out)"
}
refused train.multi_token 2 "the key is called train.mtp_depth now"
refused train.multi_token_kind heads "the key is called train.mtp_kind now"
refused train.multi_token_weight 0.5 "the key is called train.mtp_loss_weight now"
refused train.expert_capacity 2 "the key is called train.ep_buffer_factor now"
refused train.batch_start 32 "the key is called train.rampup_start now"
refused train.batch_warmup 100 "the key is called train.rampup_tokens now"
refused train.numerics exact "the key is called numerics.mode now"
refused numerics.canonical_tp 2 "the key is called numerics.tp_invariant_up_to now"
refused numerics.canonical_cp 4 "the key is called numerics.cp_invariant_up_to now"
refused parallel.context keys "the key is called mesh.cp_comm now, and its value keys is all_gather"
refused parallel.context heads "the key is called mesh.cp_comm now, and its value heads is all_to_all"
refused parallel.context auto "the key is called mesh.cp_comm now"
refused data.chat_learn all "the key is called data.chat_loss_on now"
for key in kind=wsd warmup_steps=2 warmup_from=0.1 total_steps=8 decay_ratio=0.5 min_factor=0.1 exponent=0.25 cycle_length=0.5 theta=2; do
    refused "schedule.${key%=*}" "${key#*=}" "the key is called lr_schedule.${key%=*} now"
done
exits 78 eval whole text.txt numerics.canonical_tp=2
has err "command line: numerics.canonical_tp: the key is called numerics.tp_invariant_up_to now"
exits 78 eval whole text.txt parallel.context=keys
has err "command line: parallel.context: the key is called mesh.cp_comm now, and its value keys is all_gather"
# A run's config.yaml that is given as a file is the user's.
exits 78 config "$old"
has err "the key is called data.chat_loss_on now"

conclude
