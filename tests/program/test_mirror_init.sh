#!/bin/bash
# model.init reads a mirrored checkpoint by its URL: the same bits as from the run itself, on any ranks. A plan and a resumed run fetch no
# weights.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
. "$(dirname "$script")/../support/object_store.sh"

cat >run.yaml <<END
model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {kind: constant}
run: {threads: 1, dir: run}
checkpoint: {every: 0, mirror: 's3://public/runs/one'}
END
sed '/^model:/d; /^checkpoint:/d' run.yaml >tuned.yaml
letters 40 5 >text.txt
start_store
exits 0 train run.yaml
url=s3://public/runs/one
http=http://127.0.0.1:$(cat port)/public/runs/one # of a bucket that everybody may read
digest() { "$weft" inspect --digest "$1" 2>/dev/null; }
no_weights() { ! grep 'GET .*safetensors' s3.log || fail "$1 fetches weights"; }

# A plan asks for the shape alone, and has the same.
exits 0 plan tuned.yaml model.init=run
sed '/^time /d' out >expected
: >s3.log
exits 0 plan tuned.yaml model.init=$url
diff expected <(sed '/^time /d' out) || fail "another plan"
no_weights "a plan"

# On one rank and on two, from a run and from a step: the bits of the local directory.
exits 0 train tuned.yaml run.dir=here model.init=run
exits 0 train tuned.yaml run.dir=there model.init=$url
exits 0 train tuned.yaml run.dir=web model.init="$http/step-00000002"
has err "weights from cache/checkpoints/"
on_ranks 2 "$weft" train tuned.yaml run.dir=here2 model.init=run mesh.tp=2 >out 2>err </dev/null || fail "here2: $(tail -3 err)"
rm -r cache/checkpoints
: >s3.log
on_ranks 2 "$weft" train tuned.yaml run.dir=there2 model.init=$url mesh.tp=2 >out 2>err </dev/null || fail "there2: $(tail -3 err)"
[ "$(grep -c 'GET .*model.safetensors - 200' s3.log)" -eq 1 ] || fail "not one rank alone fetched: $(cat s3.log)"
for pair in "here there" "here web" "here2 there2"; do
    [ "$(digest ${pair% *})" = "$(digest ${pair#* })" ] || fail "runs from $pair differ"
done
grep -q '^  init: "s3://public/runs/one"' there/config.yaml || fail "the URL is not in the configuration"

# Which step is meant is decided once, also if another becomes the newest in the middle of the start.
exits 0 train run.yaml train.steps=3
rm -r cache/checkpoints
faults '3 one/latest body step-00000002'
on_ranks 2 "$weft" train tuned.yaml run.dir=moved model.init=$url mesh.tp=2 >out 2>err </dev/null || fail "moved: $(tail -3 err)"
[ "$(digest moved)" = "$(digest here2)" ] || fail "not the step that rank 0 found: $(grep weights err)"
: >s3.faults

# A run that goes on has its own weights.
rm -r cache/checkpoints
: >s3.log
exits 0 train tuned.yaml run.dir=there model.init=$url train.steps=4
has err "resumed after step 2"
no_weights "a resumed run"

# The base of adapters is read at every start.
for steps in 1 2; do
    exits 0 train tuned.yaml run.dir=lora model.init=$url/step-00000002 lora.rank=2 train.steps=$steps
    exits 0 train tuned.yaml run.dir=lora_here model.init=run/checkpoints/step-00000002 lora.rank=2 train.steps=$steps
done
[ "$(digest lora)" = "$(digest lora_here)" ] || fail "adapters of a base from the mirror differ"
exits 0 merge lora merged

# What cannot be read is refused before anything is made.
exits 66 train tuned.yaml run.dir=none model.init=s3://public/runs/none
has err 's3://public/runs/none/latest: the server answers 404'
: >s3/public/runs/one/step-00000003/manifest.json
exits 66 train tuned.yaml run.dir=none model.init=$url
has err "$url/step-00000003/manifest.json is empty: "
truncate -s -1 s3/public/runs/one/step-00000002/model.safetensors
rm -r cache/checkpoints
on_ranks 2 "$weft" train tuned.yaml run.dir=none model.init=$url/step-00000002 >out 2>err </dev/null && fail "a short file was taken"
has err "the mirror is damaged"
exits 65 train tuned.yaml run.dir=none model.init="$url/step-00000002"
conclude
