#!/bin/bash
# data.order: stream over URLs: files are fetched, then tokenized while the run trains. The samples are those of local files, with an empty,
# partial or full cache, with or without the copies, and after kills.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
. "$(dirname "$script")/../support/object_store.sh"

start_store
mkdir -p s3/public/texts s3/public/more
for i in 01 02 03 04 05 06; do letters 20 "$i" >s3/public/texts/$i.txt; done
letters 60 50 | gzip >s3/public/more/a.txt.gz
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4}
data: {sources: ['s3://public/texts/*.txt', 's3://public/more/a.txt.gz'], order: stream, stream_block: 1024, cache_dir: cache, audit: true}
train: {steps: 90, context: 32, microbatch: 2, tokens_per_step: 256}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 20}
metrics: {log_freq: 1, tensorboard: false}
numerics: {mode: exact}
run: {threads: 1}
END
train() { "$weft" train run.yaml run.dir="$1" "${@:2}" >out 2>err </dev/null || fail "$1: $(tail -2 err)"; }
same() { losses files >files.losses; losses "$1" >"$1.losses"; cmp -s files.losses "$1.losses" || fail "$1: other losses than of local files"; }
good() { exits 0 audit "$1"; has out "was used exactly once"; } # DIR
fetches() { grep -c -- "^GET /public/$1 - 200" s3.log || true; } # KEY

train files 'data.sources=[s3/public/texts/*.txt, s3/public/more/a.txt.gz]' data.cache_dir=local
[ "$(losses files | wc -l)" -eq 90 ] || fail "not 90 losses"
train empty
grep -q 'tokeniz' out err || fail "does not say that it tokenizes while it trains"
same empty
good empty
: >s3.log
train full
same full
good full
[ "$(fetches 'texts/.*')" -eq 0 ] || fail "fetched again: $(cat s3.log)"

# Tokens of one cache, or of all, are gone, with the copies or without them: only what has to be tokenized is fetched.
gz=$(dirname "$(grep -l a.txt.gz cache/*/about.json)")
rm -r "$gz"
train copies
same copies
[ "$(fetches more/a.txt.gz)" -eq 0 ] || fail "a copy was fetched again: $(cat s3.log)"
rm -r "$gz"
find cache/remote -type f ! -name '.about*' ! -name in-use -delete
train partial
same partial
good partial
[ "$(fetches more/a.txt.gz)" -eq 1 ] && [ "$(fetches 'texts/.*')" -eq 0 ] || fail "not only the missing file was fetched: $(cat s3.log)"
mesh 2 ranks mesh.dp_shard=2 data.cache_dir=cache2
same ranks
good ranks

# A run trains while a cache is being built, and its copy is not removed meanwhile. It is killed, and goes on without copies; killed again while
# it fetches, it goes on from there.
killed_at() { # STEP
    "$weft" train run.yaml run.dir=killed data.cache_dir=cache3 --inject "stop:rank=0,step=$1" >/dev/null 2>&1 </dev/null &
    local pid=$!
    await stands killed
    kill -KILL "$(cat killed/lock)"
    wait "$pid" 2>/dev/null
}
first=$(sed -n 's/^step .* step=1 .*[| ]0:\([01]\)\..*/\1/p' files/audit-00000.log)
waits=$([ "$first" = 0 ] && echo a.txt.gz || echo 01.txt)
locked=$(basename "$(dirname "$(grep -l "$waits" cache2/*/about.json)")")
mkdir -p "cache3/$locked"
exec {lock}>"cache3/$locked/lock"
flock "$lock"
"$weft" train run.yaml run.dir=killed data.cache_dir=cache3 --inject stop:rank=0,step=3 >/dev/null 2>&1 </dev/null &
pid=$!
await stands killed
[ -z "$(find "cache3/$locked" -name 'part-*')" ] || fail "all was tokenized before the run trained"
exits 0 data prune cache3 --older-than 0 --delete
[ -n "$(find cache3/remote -name "$waits")" ] || fail "the copy of a file that is to be tokenized was removed: $(cat out)"
kill -KILL "$(cat killed/lock)"
wait "$pid" 2>/dev/null
exec {lock}>&-
find cache3/remote -type f ! -name '.about*' ! -name in-use -delete
faults "1 $waits cut 100" "1 $waits stall 300"
"$weft" train run.yaml run.dir=killed data.cache_dir=cache3 >/dev/null 2>&1 </dev/null &
pid=$!
await grep -q "$waits .* stall" s3.log
kill -KILL "$pid"
wait "$pid" 2>/dev/null
: >s3.faults
killed_at 50
train killed data.cache_dir=cache3
same killed
good killed

# What is damaged is named by its URL; a file that changed on the server is not read into a run that has begun.
gzip -c s3/public/texts/01.txt | head -c 600 >s3/public/cut.txt.gz
exits 65 train run.yaml run.dir=cut 'data.sources=[s3://public/cut.txt.gz]' data.cache_dir=cache4
has err "s3://public/cut.txt.gz: cache4/remote/"
letters 20 99 >s3/public/texts/03.txt
exits 78 train run.yaml run.dir=full train.steps=100
has err "the data is not what the checkpoint was trained with"
conclude "the samples are those of local files"
