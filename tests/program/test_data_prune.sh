#!/bin/bash
# weft data prune removes caches that nobody needs and nothing else: not those that a run has open, a configuration uses, or that were used
# lately, and no file that is not weft's.
. "$(dirname "$0")/../support/prelude.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
END
prune() { exits 0 data prune "$@"; }
says() { grep -qE -- "$1" out || fail "no \"$1\" in: $(cat out)"; }
# made WORD...: tokenizes and prints the name of the cache.
made() {
    rm -f before after
    ls cache 2>/dev/null | grep -E '^[0-9a-f]{32}$' >before
    exits 0 tokenize run.yaml "$@"
    ls cache | grep -E '^[0-9a-f]{32}$' >after
    comm -13 before after
}
old() { find "cache/$1" -exec touch -h -d '40 days ago' {} +; }
there() { [ -e "cache/$1/part-00000.tok" ] || fail "$2: cache/$1 is gone"; }
gone() { [ ! -e "cache/$1" ] || fail "$2: cache/$1 is still there"; }

# ---- when a file changes, its old cache remains ----
letters 40 5 >text.txt
first=$(made)
letters 40 6 >text.txt
second=$(made)
[ ${#first} = 32 ] && [ ${#second} = 32 ] || fail "caches: $first, $second"
prune cache
says "$first .* kept: used lately; of text.txt"
prune cache --older-than 0
says "$first .* would be removed"
says "2 of 2 directories, .*--delete removes them"
there "$first" "a list"
old "$first"
prune run.yaml
says "$first .* 40 days ago .* would be removed; of text.txt"
says "$second .* kept: used by run.yaml"
prune run.yaml --delete
gone "$first" "an old cache"
there "$second" "the cache in use"

# ---- a run that is alive ----
exits 0 train run.yaml run.dir=r train.steps=2 # the run's own configuration also names the cache
prune r --older-than 0
says "$second .* kept: used by r"
letters 40 7 >text.txt
third=$(made)
"$weft" train run.yaml run.dir=alive train.steps=100000000 >alive.log 2>&1 &
alive=$!
for ((i = 0; i < 600; i++)); do
    [ ! -s alive/metrics.jsonl ] || break
    sleep 0.1
done
kill -STOP $alive
old "$second"
old "$third"
prune cache --delete --older-than 0
says "$third .* kept: open by a process"
says "$second .* removed"
there "$third" "a run that is alive"
gone "$second" "beside a run that is alive"
kill -CONT $alive
kill -TERM $alive
wait $alive
# The time of last use is when the run ended; the next run does not tokenize again.
prune cache
says "$third .* today .* kept: used lately"
before=$(stat -c '%i %y' "cache/$third/part-00000.tok")
exits 0 train run.yaml run.dir=next
[ "$(stat -c '%i %y' "cache/$third/part-00000.tok")" = "$before" ] || fail "the cache was written again"

# ---- nobody opens a cache that is claimed for removal: a run waits, and then finds it removed ----
python3 - "cache/in-use" "$third" <<'END' &
import fcntl, os, struct, sys, time
F_OFD_SETLK = 37
f = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(f, F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, int(sys.argv[2][:15], 16), 1, 0))
open("claimed", "w").close()
while not os.path.exists("release"): time.sleep(0.05)
END
claimer=$!
for ((i = 0; i < 200; i++)); do
    [ ! -e claimed ] || break
    sleep 0.05
done
"$weft" tokenize run.yaml >waits.log 2>&1 &
waits=$!
for ((i = 0; i < 200; i++)); do
    ! grep -q "waiting for .weft data prune" waits.log || break
    sleep 0.05
done
kill -0 $waits 2>/dev/null && grep -q "waiting for .weft data prune" waits.log || fail "does not wait: $(cat waits.log)"
rm -r "cache/$third"
touch release
wait $waits || fail "after it was removed: $(cat waits.log)"
wait $claimer
there "$third" "tokenized again"

# ---- an interrupted build: removed after a day without changes, even if the limit is longer, unless a process has it open ----
broken=0123456789abcdef0123456789abcdef
mkdir "cache/$broken"
touch "cache/$broken/lock" "cache/$broken/part-00000.tok.tmp" "cache/$broken/about.json.12.3.tmp"
prune cache
says "$broken .* kept: used lately; an interrupted build"
find "cache/$broken" -exec touch -d '2 days ago' {} +
exec 7>"cache/$broken/lock"
flock 7 # as earlier versions did while building
touch -d '2 days ago' "cache/$broken/lock"
prune cache --delete
says "$broken .* kept: open by a process; an interrupted build"
exec 7>&-
prune cache --delete
says "$broken .* removed; an interrupted build"
gone "$broken" "an interrupted build"
there "$third" "beside it"

# ---- records of earlier versions ----
mkdir cache/fingerprints
echo '{}' >cache/fingerprints/0123456789abcdef.json
prune cache --delete
says "fingerprints .* removed"
[ ! -e cache/fingerprints ] || fail "records of earlier versions are still there"

# ---- files that are not weft's are never touched, and no link is followed ----
mkdir -p outside
cp -r "cache/$third" outside/real
cp -r "cache/$third" "cache/$broken"
echo mine >"cache/$broken/notes.txt"
linked=ffffffffffffffffffffffffffffffff inner=eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee text=dddddddddddddddddddddddddddddddd
ln -s ../outside/real "cache/$linked"
mkdir "cache/$inner" "cache/$text" cache/fingerprints cache/other
ln -s ../../outside/real/part-00000.tok "cache/$inner/part-00000.tok"
echo "no tokens" >"cache/$text/part-00000.tok"
echo mine | tee cache/fingerprints/mine.txt cache/other/part-00000.tok cache/mine.tok >/dev/null
touch -d '40 days ago' cache/*/* outside/real/*
find cache outside | LC_ALL=C sort >before
prune cache --older-than 0 --delete
says "$broken .* not touched: notes.txt is nothing that weft wrote"
says "$linked .* not touched: $linked is nothing that weft wrote"
says "$inner .* not touched: part-00000.tok"
says "$text .* not touched: part-00000.tok"
says "fingerprints .* not touched: mine.txt"
find cache outside | LC_ALL=C sort >after
[ "$(comm -23 before after | sed 's|/[^/]*\.tok$||; s|/lock$||; s|/about.json$||' | sort -u)" = "cache/$third" ] || fail "removed: $(comm -23 before after)"

# ---- mistakes: nothing is removed, and nothing made ----
fourth=$(made)
exits 78 data prune cache run.yaml outside/real/about.json --older-than 0 --delete
exits 66 data prune cache none --older-than 0 --delete
exits 2 data prune cache --older-than -1 --delete
mkdir empty
prune empty --delete
[ -z "$(ls -A empty)" ] || fail "made in a directory without caches: $(ls -A empty)"
there "$fourth" "a mistake"
conclude
