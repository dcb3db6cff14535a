#!/bin/bash
# data.order: stream. Training begins while the sources are tokenized; the samples do not depend on how much of the cache is there, on ranks,
# or on kills.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

# Of small files one cache is made; tests/data/test_loader.c has samples from many caches.
mkdir texts more
for i in 01 02 03 04 05 06 07 08 09 10 11 12; do letters 14 "$i" >"texts/$i.txt"; done
letters 30 50 >more/a.txt
letters 25 51 >more/b.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4}
data: {sources: ['texts/*.txt'], order: stream, stream_block: 1024, cache_dir: cache, audit: true}
train: {steps: 120, context: 32, microbatch: 2, tokens_per_step: 256}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 20}
metrics: {log_freq: 1, tensorboard: false}
numerics: {mode: exact}
run: {threads: 1}
END
train() { "$weft" train run.yaml run.dir="$1" "${@:2}" >out 2>err </dev/null || fail "$1: $(tail -2 err)"; }
same() { [ -s "$1.losses" ] || losses "$1" >"$1.losses"; losses "$2" >"$2.losses"; cmp -s "$1.losses" "$2.losses" || fail "other losses: $1, $2"; }
# good DIR: each sample was used once.
good() { exits 0 audit "$1"; has out "was used exactly once"; }

train empty
grep -q 'tokeniz' out err || fail "does not say that it tokenizes while it trains"
[ "$(losses empty | wc -l)" -eq 120 ] || fail "not 120 losses"
good empty
train full
same empty full
good full

# Two ranks, with caches of their own and a common one.
mesh 2 ranks mesh.dp_shard=2 data.cache_dir=cache2
same empty ranks
good ranks

# Another seed, another block: other samples.
train seed data.seed=7
losses seed >seed.losses
cmp -s seed.losses empty.losses && fail "the seed changes nothing"
train block data.stream_block=100000
losses block >block.losses
cmp -s block.losses empty.losses && fail "the block changes nothing"
good block

# Two sources are two caches, one of which another process holds locked: the run trains on the other. It is killed before all is tokenized,
# resumed, and killed twice more.
two=(data.sources='["texts/*.txt", "more/*.txt"]')
killed_at() { # STEP
    "$weft" train run.yaml run.dir=killed "${two[@]}" data.cache_dir=cache3 --inject "stop:rank=0,step=$1" >/dev/null 2>&1 </dev/null &
    local pid=$!
    await stands killed
    kill -KILL "$(cat killed/lock)"
    wait "$pid" 2>/dev/null
}
train unlocked "${two[@]}" data.cache_dir=cache7
used_first=$(sed -n 's/^step .* step=1 .*[| ]0:\([01]\)\..*/\1/p' unlocked/audit-00000.log)
waits=$([ "$used_first" = 0 ] && echo more || echo texts)
locked=$(basename "$(dirname "$(grep -l "\"$waits/" cache7/*/about.json)")")
mkdir -p "cache3/$locked"
exec {lock}>"cache3/$locked/lock"
flock "$lock"
killed_at 3
[ -n "$(ls cache3/*/part-*)" ] || fail "nothing was tokenized before the kill"
[ -z "$(find "cache3/$locked" -name 'part-*')" ] || fail "all was tokenized before the kill"
exec {lock}>&-
killed_at 60
killed_at 90
train killed "${two[@]}" data.cache_dir=cache3
same unlocked killed
good killed

# Mixtures: each source has an order of its own. Deduplication leaves out the same documents in any order of building.
mixture=(data.sources='[{path: "texts/*.txt", weight: 3}, {path: "more/*.txt", weight: 1}]')
train mixed data.cache_dir=cache4 "${mixture[@]}"
good mixed
train again data.cache_dir=cache4 "${mixture[@]}"
same mixed again
cp texts/03.txt texts/13.txt
train twice data.cache_dir=cache5 data.dedup=exact
train once data.cache_dir=cache5 data.dedup=exact
same twice once
rm texts/13.txt

# A validation set is tokenized first, and the run reports on it.
train held data.validation='[more/a.txt]' validation.every=40 data.cache_dir=cache6
grep -q '"validation' held/metrics.jsonl || fail "no validation"

# What needs the whole of the data is refused, before anything is read.
refused() { exits 78 train run.yaml run.dir=refused "$@"; has err "stream does not go with"; }
refused data.validation_fraction=0.1
refused data.weights=documents "${mixture[@]}"
printf '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' >chat.jsonl
refused data.sources='[{path: chat.jsonl, format: chat}]'
conclude "the samples are the same however much is tokenized"
