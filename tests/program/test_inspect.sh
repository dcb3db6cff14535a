#!/bin/bash
# weft inspect and weft checkpoint as users meet them: well-formed input exits 0; anything else gives one line and an exit status.
. "$(dirname "$0")/../support/prelude.sh"
golden=$WEFT_SOURCE_DIR/tests/golden/tied-odd

# file SIZE_BYTES HEADER DATA : a safetensors file with a one-byte size field value
file() { printf "\\x$(printf %x "${#2}")\0\0\0\0\0\0\0%s%s" "$2" "$3" >"$1"; }

expect 0 models qwen3 --json
grep -q '"model_type": "qwen3"' out && ! grep '"model_type": "llama"' out || fail "weft models of one family as JSON: $(head -5 out)"
expect 2 models qwen9 --json
has err 'no family "qwen9"; expected one of'

expect 0 inspect "$golden"
has out "21,252 parameters"
has out "model.layers.1.mlp.down_proj.weight"
has out "[33, 53]"
expect 0 inspect --header "$golden/grads.safetensors"
expect 0 inspect --digest "$golden"
cp out whole
[ "$(wc -c <out)" -eq 65 ] || fail "a digest is 64 digits and a line end"
expect 0 inspect --digest "$golden/model.safetensors"
cmp -s out whole || fail "the digest depends on how the weights were named"
expect 0 inspect --digest "$golden/final.safetensors"
! cmp -s out whole || fail "other weights have the same digest"

# Order in the file does not matter; a name that would clear the screen is escaped.
file a.safetensors '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}' xy
file b.safetensors '{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}' yx
expect 0 inspect --digest a.safetensors
cp out whole
expect 0 inspect --digest b.safetensors
cmp -s out whole || fail "the digest depends on the order in the file"
file c.safetensors '{"\u001b[2J":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' x
expect 0 inspect c.safetensors
has out '\x1B[2J'

# Which parameters are in which group, for a configuration and for a run.
cat >run.yaml <<EOF
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2}
optimizer: {groups: [{match: mlp, kind: sgd, lr: 0.1, states: bf16, whole: true}]}
EOF
expect 0 inspect --groups run.yaml
grep -q '^  mlp  *6 .* sgd  *0.1 .* bf16 ' out || fail "a row of the group: $(cat out)"
has out '  the rest '
[ "$(grep -c '_proj.weight .*, whole$' out)" -eq 6 ] || fail "six matrices stay whole: $(cat out)"
[ "$(sed -n '/the rest/,$d; /mlp/p' out | wc -l)" -eq 7 ] || fail "six parameters in the group: $(cat out)"
mkdir run && cp run.yaml run/config.yaml
cp out groups
expect 0 inspect --groups run
cmp -s out groups || fail "the groups of a run are those of its configuration"
expect 0 inspect --groups run.yaml 'optimizer.groups=[{match: norm, lr: 0.5}]' model.num_hidden_layers=1
[ "$(sed -n '/the rest/,$d; /norm/p' out | wc -l)" -eq 4 ] || fail "three parameters in the group of the command line: $(cat out)"
expect 2 inspect run.yaml optimizer.lr=1
has err "only --groups takes section.key=value"
expect 2 inspect --groups optimizer.lr=1
has err "the configuration file is missing: it comes before what is assigned, as in my.yaml optimizer.lr=1"
sed -i 's/mlp/experts/' run.yaml
expect 78 inspect --groups run.yaml
has err 'optimizer.groups[0].match: no parameter has "experts" in its name'

expect 66 inspect nothing
expect 66 inspect .
has err "model.safetensors"
expect 65 inspect "$golden/config.json"
has err "config.json: not a safetensors file: it begins like JSON"
echo "words in a text" >words.txt
expect 65 inspect words.txt
has err "words.txt: not a safetensors file: it begins like text"
head -c 1000 "$golden/model.safetensors" >short.safetensors
expect 65 inspect short.safetensors
mkdir model && cp "$golden/model.safetensors" model && echo '{"model_type": "llama",}' >model/config.json
expect 65 inspect model
has err config.json
mkdir escape && echo '{"weight_map": {"a": "../a.safetensors"}}' >escape/model.safetensors.index.json
expect 65 inspect escape
has err "../a.safetensors"
expect 2 inspect

# Checkpoints of a real run.
yes "In the beginning was the word, and it was tokenized." | head -n 400 >text.txt
cat >run.yaml <<'Y'
run: {dir: run}
data: {sources: [text.txt], tokenizer: bytes}
model: {hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
train: {steps: 4, context: 16, microbatch: 1}
checkpoint: {every: 1, keep: 4}
Y
expect 0 train run.yaml
expect 0 checkpoint list run
[ "$(wc -l <out)" -eq 4 ] || fail "four checkpoints, not: $(cat out)"
expect 0 checkpoint verify run
expect 0 inspect run
has out "step 4"
printf X | dd of=run/checkpoints/step-00000004/model.safetensors bs=1 seek=5000 conv=notrunc status=none
"$weft" checkpoint verify run >out 2>err
[ $? -eq 65 ] || fail "verify does not fail on damage"
grep -q '^3 .* good$' out || fail "verify does not call what it read good: $(cat out)"
expect 0 checkpoint list run
[ "$(grep -c ' complete$' out)" -eq 4 ] && ! grep -q good out || fail "list calls good what it has not read: $(cat out)"
"$weft" checkpoint verify run >out 2>err
has out "step-00000004/model.safetensors: "
expect 65 checkpoint verify run/checkpoints/step-00000004
"$weft" inspect run >out 2>err || fail "inspect does not fall back: $(cat err)"
has out "step 3"
for run in run run/checkpoints; do
    # A run that trains holds its lock.
    flock run/lock "$weft" checkpoint prune $run --keep 2 >out 2>err
    [ $? -eq 73 ] || fail "prune $run does not mind the run's lock: $(cat err)"
    has err "nothing was removed"
done
[ "$(ls -d run/checkpoints/step-* | wc -l)" -eq 4 ] || fail "something was removed"
expect 0 checkpoint prune run --keep 2
has out "1 removed"
cp -r run/checkpoints apart
expect 0 checkpoint prune apart --keep 2
[ ! -e lock ] || fail "prune made a lock where no run is"
expect 0 checkpoint verify run/checkpoints/step-00000003
expect 66 checkpoint list nothing
expect 2 checkpoint polish run
expect 2 checkpoint prune run --keep 1

conclude
