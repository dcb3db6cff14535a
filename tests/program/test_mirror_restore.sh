#!/bin/bash
# checkpoint.restore: a run whose directory is lost goes on from its mirror with the same bits, and mirrors on.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
. "$(dirname "$script")/../support/object_store.sh"

cat >run.yaml <<END
model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 4, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {kind: constant}
run: {threads: 1}
checkpoint: {every: 0}
END
letters 40 5 >text.txt
start_store
url=s3://public/runs/one
http=http://127.0.0.1:$(cat port)/public/runs/one/ # of a bucket that everybody may read
mesh 2 a checkpoint.mirror=$url train.steps=2
cp -r a local
mesh 2 local
rm -r a

# As from the local directory, also by way of a fetch that was interrupted. No other rank asks the store.
faults '1 optimizer.safetensors none' '1 optimizer.safetensors cut 100000' '9 optimizer.safetensors status 403'
exits 66 train run.yaml run.dir=a checkpoint.restore=$url checkpoint.mirror=$url
has err "checkpoint.restore: $url/step-00000002/optimizer.safetensors: the server answers 403"
[ -z "$(ls a/checkpoints)" ] || fail "a checkpoint that is not whole counts: $(ls a/checkpoints)"
: >s3.faults
: >s3.log
mesh 2 a checkpoint.restore=$url checkpoint.mirror=$url
has err "resumed after step 2"
grep -q 'optimizer.safetensors bytes=100000- 206' s3.log || fail "the fetch did not go on where it ended: $(cat s3.log)"
[ "$(grep -c 'step-00000002/config.json bytes=0-0' s3.log)" -eq 1 ] || fail "not one rank alone asked the store"
[ ! -e a/checkpoints/.fetch ] || fail "the fetch left something: $(find a/checkpoints)"
same() {
    for file in model.safetensors optimizer.safetensors; do
        cmp "$1/checkpoints/step-00000004/$file" "local/checkpoints/step-00000004/$file" || fail "$1: other bits in $file"
    done
}
same a
cmp s3/public/runs/one/latest <(printf step-00000004) || fail "the restored run does not mirror: $(cat s3/public/runs/one/latest)"

# From one step, by https://, on another number of ranks.
exits 0 train run.yaml run.dir=b checkpoint.restore="${http}step-00000002"
has err "resumed after step 2"
[ "$("$weft" inspect --digest b)" = "$("$weft" inspect --digest local)" ] || cmp b/checkpoints/step-00000002/manifest.json local/checkpoints/step-00000002/manifest.json ||
    fail "b: another checkpoint"

# A run that has a checkpoint asks nobody.
: >s3.log
exits 0 train run.yaml run.dir=b checkpoint.restore=$url train.steps=5
has err "resumed after step 4"
[ ! -s s3.log ] || fail "a run with a checkpoint asks the store: $(cat s3.log)"

# What cannot be resumed from.
exits 78 train run.yaml run.dir=c checkpoint.restore=$url run.overwrite=true
has err "run.overwrite starts at step 0, and this goes on from a checkpoint"
exits 78 train run.yaml run.dir=c checkpoint.restore=runs/one
has err "checkpoint.restore: runs/one: "
exits 66 train run.yaml run.dir=c checkpoint.restore=s3://public/runs/none
has err "checkpoint.restore: no checkpoint is found: s3://public/runs/none/latest: "
exits 0 train run.yaml run.dir=d checkpoint.mirror=s3://public/runs/two checkpoint.last_weights_only=true
exits 65 train run.yaml run.dir=c checkpoint.restore=s3://public/runs/two
has err "s3://public/runs/two/step-00000004 holds weights only"
printf X | dd of=s3/public/runs/one/step-00000002/optimizer.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null
on_ranks 2 "$weft" train run.yaml run.dir=c checkpoint.restore=$url/step-00000002 >out 2>err </dev/null && fail "a damaged checkpoint was taken"
has err "$url/step-00000002, which was fetched and is removed again, is damaged: "
: >s3/public/runs/one/step-00000002/manifest.json
exits 66 train run.yaml run.dir=c checkpoint.restore=$url/step-00000002
has err "manifest.json is empty: a run is replacing this checkpoint"
[ -z "$(ls c/checkpoints)" ] || fail "a checkpoint that is not good counts: $(ls c/checkpoints)"
conclude
