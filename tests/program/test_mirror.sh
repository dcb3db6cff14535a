#!/bin/bash
# checkpoint.mirror copies each committed checkpoint to an object store, whole or not at all, while the run goes on; a store that fails delays
# nothing and ends nothing.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/object_store.sh"

# A model file of more than one part.
cat >run.yaml <<END
model: {hidden_size: 512, intermediate_size: 1024, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
checkpoint: {every: 1, mirror: 's3://backup/runs/one'}
END
letters 40 5 >text.txt
start_store
copy=s3/backup/runs/one
# mirrored DIR STEP: the store has this checkpoint, byte for byte, and `latest` names it.
mirrored() {
    diff -r "$1/checkpoints/step-0000000$2" "$copy/step-0000000$2" || fail "$1: step $2 is not as in the store"
    [ "$(cat $copy/latest)" = "step-0000000$2" ] || fail "$1: latest is $(cat $copy/latest)"
}

exits 0 train run.yaml run.dir=a
mirrored a 2
has err "mirrored step-00000002 to s3://backup/runs/one: "
[ "$(stat -c %s a/checkpoints/step-00000002/model.safetensors)" -gt $((16 << 20)) ] || fail "the model file is too small for several parts"
grep -q 'partNumber=2&uploadId' s3.log || fail "no file was uploaded in parts"
for secret in "$AWS_SECRET_ACCESS_KEY" "$AWS_ACCESS_KEY_ID"; do
    ! grep -rlF "$secret" a out err "$copy" || fail "the secret $secret is in these files"
done

# A start that finds its newest checkpoint in the store uploads nothing.
: >s3.log
exits 0 train run.yaml run.dir=a
! grep -q '^PUT .*safetensors' s3.log || fail "a checkpoint was uploaded again: $(cat s3.log)"

# One that does not find it uploads it first: as after a kill.
rm $copy/step-00000002/manifest.json
exits 0 train run.yaml run.dir=a
mirrored a 2

# What passes is tried again, also a completion that begins as a success and is an error.
rm -r s3/backup
faults '2 partNumber status 503:SlowDown' '1 state.json status 500' '1 uploads= hangup' '1 manifest.json hangup' \
    '1 safetensors?uploadId= body <Error><Code>InternalError</Code></Error>'
exits 0 train run.yaml run.dir=b
mirrored b 2

# Parts that are lost for good: the upload is taken back, and the run goes on.
rm -r s3/backup
faults '99 partNumber=2 status 400:InvalidPart'
exits 0 train run.yaml run.dir=c
has err "step-00000002 was not mirrored: s3://backup/runs/one/step-00000002/"
has err "the server answers 400 InvalidPart"
grep -q '^DELETE .*uploadId' s3.log || fail "the upload was not taken back"
[ ! -e $copy/latest ] && [ -z "$(find $copy -name manifest.json)" ] || fail "a checkpoint that was not copied counts: $(find $copy)"
: >s3.faults
exits 0 train run.yaml run.dir=c train.steps=3
mirrored c 3

# What is wrong from the start is found at the start.
AWS_SECRET_ACCESS_KEY=another exits 66 train run.yaml run.dir=d
has err "checkpoint.mirror: s3://backup/runs/one/weft: the server answers 403 SignatureDoesNotMatch"
for url in https://host/a s3://bucket 's3://bucket/a*' /path 's3://key:hunter2@bucket/a' 's3://bucket/a?X-Amz-Signature=hunter2'; do
    exits 78 train run.yaml run.dir=d checkpoint.mirror="$url"
    has err "checkpoint.mirror: "
    hasnt err hunter2
done

# The checkpoints of another run stay as they are.
cp -r $copy kept
exits 78 train run.yaml run.dir=e data.seed=9
has err "checkpoint.mirror: s3://backup/runs/one belongs to another run"
diff -r kept $copy || fail "another run changed the mirror"

# A run that was restored from a copy goes on with the mirror.
mkdir -p f/checkpoints
cp -r $copy/step-00000003 f/checkpoints/
exits 0 train run.yaml run.dir=f train.steps=4
mirrored f 4

# A run that another one has taken the prefix from stops copying.
faults '2 one/weft none' '99 one/weft body run%20another'
exits 0 train run.yaml run.dir=f train.steps=5
has err "step-00000005 was not mirrored: s3://backup/runs/one belongs to another run"
[ ! -e $copy/step-00000005 ] || fail "a checkpoint was copied among those of another run"
: >s3.faults
exits 0 train run.yaml run.dir=f train.steps=5
mirrored f 5

# While a run replaces its own checkpoint of a step, that one does not count.
printf another >$copy/step-00000005/manifest.json
faults '99 step-00000005/optimizer.safetensors status 403:AccessDenied'
exits 0 train run.yaml run.dir=f train.steps=5
has err "s3://backup/runs/one/step-00000005: replaces another checkpoint of this run and step"
has err "optimizer.safetensors: the server answers 403 AccessDenied (on command); check the credentials, what they may write, and AWS_REGION; the run"
[ ! -s $copy/step-00000005/manifest.json ] || fail "a checkpoint that is half replaced has a manifest"
: >s3.faults
exits 0 train run.yaml run.dir=f train.steps=5
mirrored f 5
conclude
