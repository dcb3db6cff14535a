#!/bin/bash
# weft eval, generate, export, merge and inspect read checkpoints from a mirror, as from the run itself: fetched once, verified, resumed after
# a failure. What is not committed, damaged or not there is refused.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
. "$(dirname "$script")/../support/object_store.sh"

cat >run.yaml <<END
model: {hidden_size: 128, intermediate_size: 256, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 3, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1, dir: run}
checkpoint: {every: 0, dtype: bf16, mirror: 's3://public/runs/one'}
END
letters 40 5 >text.txt
letters 10 6 >held.txt
start_store
exits 0 train run.yaml train.steps=2
exits 0 train run.yaml
store=s3/public/runs/one
url=s3://public/runs/one
http=http://127.0.0.1:$(cat port)/public/runs/one # of a bucket that everybody may read
local=run/checkpoints/step-0000000
figures() { sed '/tokens\/s/d' out; }

# same WORD...: the verb has the same figures for the run, its mirror by s3:// and by https://, and the same step of each.
same() { # VERB REST...
    local verb=$1
    shift
    for pair in "run $url" "run $url/" "run $url/latest" "run $http" "${local}2 $url/step-00000002" "${local}2 $http/step-00000002/"; do
        exits 0 "$verb" "${pair% *}" "$@"
        figures >expected
        exits 0 "$verb" "${pair#* }" "$@"
        diff expected <(figures) || fail "$verb ${pair#* } is not as of ${pair% *}"
    done
}
same eval held.txt --threads 1 --json
same generate --prompt abc --tokens 8 --seed 1 --threads 1
same inspect --digest
diff -r run/checkpoints/step-00000003 .weft-cache/checkpoints/*/step-00000003 || fail "the copy is another one"
[ "$(find .weft-cache/checkpoints -name manifest.json | wc -l)" -eq 2 ] || fail "two steps were fetched, into $(find .weft-cache -name manifest.json)"
[ -z "$(find .weft-cache/remote -name '*.safetensors')" ] || fail "files stay in the cache twice"

# A copy is fetched once: only its manifest is looked at again.
: >s3.log
exits 0 eval "$url" held.txt
! grep -v -e latest -e manifest.json -e 'list-type' s3.log || fail "a checkpoint was fetched again"

# The exact weights are exported, which only the file of the moments has.
exits 0 export run a --dtype fp32
exits 0 export "$url" b --dtype fp32
diff -r a b || fail "the model exported from the mirror is another one"

# Ranks read one copy, of the step that rank 0 found. Rank 0 asks for the name, and one rank fetches.
rm -r .weft-cache
exits 0 eval run held.txt --threads 1 --json -n 2 mesh.tp=2
figures >expected
: >s3.log
exits 0 eval "$url" held.txt --threads 1 --json -n 2 mesh.tp=2
[ "$(grep -c 'GET /public/runs/one/latest' s3.log)" -eq 1 ] || fail "not rank 0 alone asked for the newest step: $(cat s3.log)"
[ "$(grep -c 'GET .*model.safetensors - 200' s3.log)" -eq 1 ] || fail "not one rank alone fetched: $(cat s3.log)"
diff expected <(figures) || fail "two ranks read another model"

# An interrupted fetch goes on where it ended.
rm -r .weft-cache
faults '1 optimizer.safetensors none' '1 optimizer.safetensors cut 100000' '9 optimizer.safetensors status 403'
exits 66 eval "$url" held.txt
[ ! -e .weft-cache/checkpoints/*/step-00000003 ] || fail "a checkpoint that was not fetched is there"
: >s3.log
: >s3.faults
exits 0 eval "$url" held.txt --threads 1 --json -n 2 mesh.tp=2
diff expected <(figures) || fail "a checkpoint that was fetched in pieces is another one"
grep -q 'optimizer.safetensors bytes=100000- 206' s3.log || fail "the fetch did not go on where it ended: $(cat s3.log)"

# What is not there, and what is not committed.
exits 66 eval s3://public/runs/none held.txt
has err 'no checkpoint is found: s3://public/runs/none/latest: the server answers 404 NoSuchKey'
exits 66 eval "$url/step-00000009" held.txt
has err 'no committed checkpoint is found: s3://public/runs/one/step-00000009/manifest.json: '
exits 66 eval "$http/step-00000009" held.txt
has err 'no committed checkpoint is found: '
cp -r $store/step-00000002 kept
: >$store/step-00000002/manifest.json
exits 66 eval "$url/step-00000002" held.txt
has err "$url/step-00000002/manifest.json is empty: a run is replacing this checkpoint."
exits 66 eval "$url/step-00000002" held.txt -n 2
has err "$url/step-00000002/manifest.json is empty: "
for bad in ftp://host/a 's3://public/runs/*' "$http/step-{1,2}" "$http?a=b" s3://public 's3://key:hunter2@public/a'; do
    exits 78 eval "$bad" held.txt
    hasnt err hunter2
done

# Damage, of sizes and of bytes, and a server that has something else.
rm -r $store/step-00000002 .weft-cache
cp -r kept $store/step-00000002
truncate -s -1 $store/step-00000002/model.safetensors
exits 65 eval "$url/step-00000002" held.txt
grep -q "$url/step-00000002/model.safetensors: [0-9]* bytes in the store, where the manifest says [0-9]*: the mirror is damaged" err || fail "$(cat err)"
[ ! -e .weft-cache/remote ] || [ -z "$(find .weft-cache/remote -name '*.safetensors')" ] || fail "files were fetched of a checkpoint that is short"
cp kept/model.safetensors $store/step-00000002/
printf X | dd of=$store/step-00000002/model.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null
for ranks_of in 1 2; do
    exits 65 eval "$url/step-00000002" held.txt -n $ranks_of
    has err "$url/step-00000002, which was fetched and is removed again, is damaged: "
    has err "weight is damaged: checksum"
done
[ -z "$(find .weft-cache/checkpoints -name '*step-00000002')" ] || fail "a damaged copy stays: $(find .weft-cache/checkpoints)"
printf X | dd of=$store/step-00000002/manifest.json bs=1 seek=40 conv=notrunc 2>/dev/null
exits 65 eval "$url/step-00000002" held.txt
has err "$url/step-00000002/manifest.json: damaged: its checksum does not match its content"
rm -r $store/step-00000002
cp -r kept $store/step-00000002
exits 0 eval "$url/step-00000002" held.txt
cp -r kept $store/step-00000007
exits 65 eval "$url/step-00000007" held.txt
has err "$url/step-00000007/manifest.json is that of step 2: the checkpoint was renamed"
printf '../../etc' >$store/latest
exits 65 eval "$url" held.txt
has err "$url/latest: expected the name of a checkpoint, as step-00000200, found \"../../etc\""
conclude
