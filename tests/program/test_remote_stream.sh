#!/bin/bash
# data.order: stream over URLs: files are fetched and tokenized while the run trains. The samples are those of local files, with an empty,
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

# The run trains before the last file has come: the server holds it back until a step is logged. On 2 ranks, too, and stopped meanwhile.
parts=(a b c d e)
for i in "${!parts[@]}"; do mkdir -p "s3/public/${parts[i]}" && letters 30 "$((100 + i))" >"s3/public/${parts[i]}/part.txt"; done
some() { local part list=; for part in "${parts[@]}"; do list+="${list:+, }$1public/$part/part.txt"; done; echo "data.sources=[$list]"; }
late() { # DIR CACHE COMMAND...
    local pid
    rm -f go
    faults "9 $last hold go"
    "${@:3}" >late.out 2>late.err </dev/null &
    pid=$!
    await grep -Eq '^step: +1 ' late.err
    [ "$(grep -c -- "$last - 200" s3.log)" -eq 0 ] || fail "$1: $last came before step 1: $(cat s3.log)"
    touch go
    wait "$pid" || fail "$1: $(tail -2 late.err)"
    : >s3.faults
}
train parts "$(some s3/)" data.cache_dir=local
: >s3.log
train ordered "$(some s3://)" data.cache_dir=cache5
last=$(sed -n 's/^GET .public.\(.*part.txt\) - 200.*/\1/p' s3.log | tail -1)
losses parts >parts.losses
equal() { losses "$1" >"$1.losses"; cmp -s parts.losses "$1.losses" || fail "$1: other losses than of local files"; good "$1"; }
equal ordered
: >s3.log
late held cache6 "$weft" train run.yaml run.dir=held "$(some s3://)" data.cache_dir=cache6
equal held
: >s3.log
late held2 cache7 "$weft" train -n 2 run.yaml run.dir=held2 mesh.dp_shard=2 "$(some s3://)" data.cache_dir=cache7
equal held2

# A run that is killed before all has come goes on, also without its caches; a file that changed is named; a failure ends all ranks.
: >s3.log
rm -f go
faults "9 $last hold go"
"$weft" train run.yaml run.dir=cut_off "$(some s3://)" data.cache_dir=cache8 checkpoint.every=1 --inject stop:rank=0,step=3 >/dev/null 2>&1 </dev/null &
pid=$!
await stands cut_off
kill -KILL "$(cat cut_off/lock)"
wait "$pid" 2>/dev/null
touch go
: >s3.faults
rm -r cache8
cp "s3/public/$last" kept
letters 30 200 >"s3/public/$last"
exits 78 train run.yaml run.dir=cut_off "$(some s3://)" data.cache_dir=cache5
has err "changed on the server: s3://public/$last"
cp kept "s3/public/$last"
faults "99 $last missing"
"$weft" train -n 2 run.yaml run.dir=failed mesh.dp_shard=2 "$(some s3://)" data.cache_dir=cache9 >out 2>err </dev/null && fail "a missing file does not end the run"
[ "$(grep -c "^weft: .*s3://public/$last: the server answers" err)" -eq 1 ] || fail "not one error: $(cat err)"
: >s3.faults
train cut_off "$(some s3://)" data.cache_dir=cache8
equal cut_off

# Other bytes under the same version: nothing tells before they are fetched, so the next save does.
faults "999 $last etag same"
train swapped "$(some s3://)" data.cache_dir=cache11 train.steps=50 lr_schedule.total_steps=90
rm -r cache11
letters 30 201 >"s3/public/$last"
exits 78 train run.yaml run.dir=swapped "$(some s3://)" data.cache_dir=cache11 lr_schedule.total_steps=90
has err "the server sends other bytes under the same versions of files"
cp kept "s3/public/$last"
: >s3.faults

# A run over URLs goes on with local copies, more than once: the contents stay known.
train moved "$(some s3://)" data.cache_dir=cache12 train.steps=50 lr_schedule.total_steps=90
train moved "$(some s3/)" data.cache_dir=cache12 train.steps=70 lr_schedule.total_steps=90 'run.allow_changes=[data.sources]'
train moved "$(some s3/)" data.cache_dir=cache12 lr_schedule.total_steps=90 'run.allow_changes=[data.sources]'

# Copies go as their tokens come: two of five fit, and the run fetches each once.
: >s3.log
train bounded "$(some s3://)" data.cache_dir=cache10 data.remote_cache_gib=0.0000038
equal bounded
[ "$(find cache10/remote -name part.txt | wc -l)" -le 2 ] || fail "copies beyond the limit: $(find cache10/remote -name part.txt)"
[ "$(fetches '.*part.txt')" -eq 5 ] || fail "not each file once: $(cat s3.log)"

# Receipts state contents: all files come before the first step, and a step is confirmed, also from local copies of the files.
: >s3.log
train proven "$(some s3://)" data.cache_dir=cache8 run.receipts=true checkpoint.every=2
data_of() { sed -n 's/.*"data": *"\([0-9a-f]*\)".*/\1/p' "$1/receipts.jsonl" | head -1; }
train by_content "$(some s3/)" data.cache_dir=local run.receipts=true
[ -n "$(data_of proven)" ] && [ "$(data_of proven)" = "$(data_of by_content)" ] || fail "receipts of the same files: $(data_of proven), $(data_of by_content)"
expect_alone 0 verify proven --step 5
has out "step 5 is confirmed"

# What is damaged is named by its URL; a file that changed on the server is not read into a run that has begun.
gzip -c s3/public/texts/01.txt | head -c 600 >s3/public/cut.txt.gz
exits 65 train run.yaml run.dir=cut 'data.sources=[s3://public/cut.txt.gz]' data.cache_dir=cache4
has err "s3://public/cut.txt.gz: cache4/remote/"
letters 20 99 >s3/public/texts/03.txt
exits 78 train run.yaml run.dir=full train.steps=100
has err "the data is not what the checkpoint was trained with"
conclude "the samples are those of local files"
