#!/bin/bash
# weft data prune finds copies of remote files and of mirrored checkpoints: those that nothing needs go, with their bytes; those that a
# configuration reads, a process has open or that were used lately stay, and so does every file that is not weft's.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/object_store.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: ['s3://public/corpus/*.txt'], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1, dir: run}
END
start_store
mkdir -p s3/public/corpus s3/public/tasks
for i in 0 1; do letters 30 $i >s3/public/corpus/$i.txt; done
letters 30 8 >s3/public/other.txt
echo '{"text": "one and two"}' >s3/public/tasks/lambada.jsonl
size=$(stat -c %s s3/public/other.txt)
prune() { exits 0 data prune "$@"; }
says() { grep -qE -- "$1" out || fail "no \"$1\" in: $(cat out)"; }
copy() { find cache/remote -name "$1"; } # NAME: path of a copy
entry() { basename "$(dirname "$(copy "$1")")"; }
old() { find "$1" -exec touch -h -d '40 days ago' {} +; }
there() { [ -e "$1" ] || fail "$2: $1 is gone"; }
gone() { [ ! -e "$1" ] || fail "$2: $1 is still there"; }

# ---- copies of files ----
exits 0 train run.yaml "evaluation.tasks=['s3://public/tasks/lambada.jsonl']"
exits 0 tokenize run.yaml 'data.sources=["s3://public/other.txt"]'
first=$(copy 0.txt) other=$(copy other.txt) task=$(copy lambada.jsonl)
[ -n "$first" ] && [ -n "$other" ] && [ -n "$task" ] || fail "copies: $(find cache/remote)"
prune cache
says "^cache/remote$"
says "$(entry other.txt) .* today .* kept: used lately; of s3://public/other.txt"
old cache/remote
prune cache
says "$(entry other.txt) .* 40 days ago .* would be removed; of s3://public/other.txt"
says "^4 of 4 directories, .* would be removed; --delete removes them"
there "$other" "a list"
prune run.yaml
says "$(entry 0.txt) .* kept: used by run.yaml"
says "$(entry lambada.jsonl) .* would be removed"
prune run --older-than 0
says "$(entry lambada.jsonl) .* kept: used by run"
says "$(entry other.txt) .* would be removed"
prune run --older-than 0 --delete
says "$(basename "$(dirname "$other")") .* removed; of s3://public/other.txt"
says "^1 of 4 directories, $(awk -v n="$size" 'BEGIN { printf "%.2f KiB", n / 1024 }'), removed"
gone "$other" "a copy that nothing needs"
there "$first" "a source's copy"
there "$task" "a task's copy"
: >s3.log
exits 0 tokenize run.yaml 'data.sources=["s3://public/other.txt"]'
[ "$(grep -c 'GET /public/other.txt - 200' s3.log)" -eq 1 ] || fail "without tokens and copy, the file is fetched once: $(cat s3.log)"
rm -r cache/[0-9a-f]*

# ---- one that a process has open, and an interrupted download ----
letters 9000 6 >s3/public/large.txt
faults '1 large none' '1 large stall 300'
"$weft" tokenize run.yaml 'data.sources=["s3://public/large.txt"]' >large.log 2>&1 &
fetching=$!
await grep -q '^GET /public/large.txt - 200 stall' s3.log
await test -n "$(copy .part)" || true
part=$(find cache/remote -name .part)
old "$(dirname "$part")"
prune cache --older-than 0
says "$(basename "$(dirname "$part")") .* kept: open by a process; an interrupted download; of s3://public/large.txt"
kill -KILL $fetching
wait $fetching 2>/dev/null
: >s3.faults
prune cache --delete
says "$(basename "$(dirname "$part")") .* removed; an interrupted download"
gone "$part" "an interrupted download"

# ---- what is not weft's ----
echo mine >"$(dirname "$task")/notes.txt"
old cache/remote
prune cache --older-than 0 --delete
says "$(basename "$(dirname "$task")") .* not touched: notes.txt is nothing that weft wrote"
there "$task" "next to another file"
rm "$(dirname "$task")/notes.txt"

# ---- copies of mirrored checkpoints ----
exits 0 train run.yaml run.dir=a checkpoint.mirror=s3://public/runs/a
exits 0 train run.yaml run.dir=b run.seed=2 checkpoint.mirror=s3://public/runs/b
cat >tuned.yaml <<END
model: {init: s3://public/runs/a}
data: {sources: ['s3://public/corpus/*.txt'], cache_dir: cache, tokenizer: bytes}
train: {steps: 1, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
END
exits 0 train tuned.yaml run.dir=ta
a=$(echo cache/checkpoints/*)
exits 0 train tuned.yaml run.dir=tb model.init=s3://public/runs/b
b=$(ls -d cache/checkpoints/* | grep -v "$a")
[ -d "$a/step-00000002" ] && [ -d "$b/step-00000002" ] || fail "copies of checkpoints: $(find cache/checkpoints)"
bytes=$(find "$b" -type f -printf '%s\n' | awk '{ n += $1 } END { printf "%.2f KiB", n / 1024 }')
prune cache
says "^cache/checkpoints$"
says "$(basename "$b") .* today .* kept: used lately; of step-00000002"
old cache/checkpoints
exits 0 train tuned.yaml run.dir=used model.init=s3://public/runs/b # which notes the use
prune cache
says "$(basename "$a") .* 40 days ago .* would be removed"
says "$(basename "$b") .* today .* kept: used lately"
old cache/checkpoints
"$weft" train tuned.yaml run.dir=alive train.steps=100000000 >alive.log 2>&1 &
alive=$!
await test -s alive/metrics.jsonl
old cache/checkpoints
prune cache --older-than 0
says "$(basename "$a") .* kept: open by a process"
kill -TERM $alive
wait $alive
prune tuned.yaml --older-than 0
says "$(basename "$a") .* kept: used by tuned.yaml"
says "$(basename "$b") .* would be removed"
echo mine >"$b/step-00000002/notes.json"
prune tuned.yaml --older-than 0 --delete
says "$(basename "$b") .* not touched: notes.json is nothing that weft wrote"
there "$b/step-00000002/config.json" "next to another file"
rm "$b/step-00000002/notes.json"
ln -s ../../a "cache/checkpoints/ffffffffffffffffffffffffffffffff"
prune tuned.yaml --older-than 0 --delete
says "ffffffffffffffffffffffffffffffff .* not touched"
says "$(basename "$b") .* $bytes .* removed; of step-00000002"
says "^1 of 3 directories, $bytes, removed"
gone "$b" "a copy that nothing needs"
there "$a/step-00000002/config.json" "a copy that a configuration names"
there a/config.yaml "behind a link"
exits 0 train tuned.yaml run.dir=again model.init=s3://public/runs/b
there "$b/step-00000002/config.json" "fetched again"

# ---- described alone: weft plan fetches no weights ----
rm -r cache/checkpoints
exits 0 plan tuned.yaml
there "$a/described/config.json" "a description"
old cache/checkpoints
prune cache --delete
gone "$a" "an old description"
conclude
