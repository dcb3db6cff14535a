#!/bin/bash
# Runs that are killed at random moments while their data is fetched, read and tokenized: the same samples, losses and weights as undisturbed.
# Odd sequences read objects of a slow S3 server, even ones local files with data.order: stream.
#   KILLS=100 SEED=1 tests/program/test_data_kills.sh     (make soak)
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
. "$(dirname "$script")/../support/object_store.sh"
kills=${KILLS:-6}
RANDOM=${SEED:-1}

# ---- the same kind of data in each place: text, JSON lines in gzip, token ids ----
mkdir -p s3/data
for i in 0 1 2 3 4 5; do letters 12000 "$i" >"s3/data/$i.txt"; done
for i in 6 7; do
    letters 6000 "$i" | python3 -c '
import gzip, json, sys
with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as out:
    for line in sys.stdin:
        if line.strip(): out.write(json.dumps({"text": line.strip()}).encode() + b"\n")' "s3/data/$i.json.gz"
done
letters 9000 8 | python3 -c '
import array, sys
ids = array.array("H", list(sys.stdin.buffer.read().replace(b"\n\n", b"\0")))
if sys.byteorder == "big": ids.byteswap()
head = str({"descr": "<u2", "fortran_order": False, "shape": (len(ids),)}).encode()
head += b" " * (-(len(head) + 11) % 64) + b"\n"
sys.stdout.buffer.write(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + ids.tobytes())' >s3/data/8.npy

start_store
slow() { faults "1000000 /data/ slow 0.002"; } # 8 MB/s for each connection

cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4}
data: {tokenizer: bytes, cache_dir: cache, audit: true}
train: {steps: 150, context: 32, microbatch: 2, tokens_per_step: 256}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 10}
metrics: {log_freq: 1, tensorboard: false}
numerics: {mode: exact}
run: {threads: 1}
END
remote="data.sources=['s3://data/[0-5].txt','s3://data/*.json.gz',{path: 's3://data/8.npy', format: tokens, end: 0}]"
stream="data.sources=['s3/data/[0-5].txt','s3/data/*.json.gz',{path: s3/data/8.npy, format: tokens, end: 0}]"
# The arguments of sequence N, and the name of the undisturbed run with the same data. Every third one has two ranks.
sequence() {
    if [ $(($1 % 2)) -eq 1 ]; then whole=remote words=("$remote"); else whole=stream words=("$stream" data.order=stream data.stream_block=65536); fi
    [ $(($1 % 3)) -ne 0 ] || words+=(-n 2 mesh.dp_shard=2)
}

# The undisturbed runs, and how long they take, in milliseconds.
declare -A lasts
for n in 1 2; do
    sequence "$n"
    slow
    begun=$(date +%s%3N)
    "$weft" train run.yaml run.dir="$whole" data.cache_dir="cache-$whole" "${words[@]}" >out 2>err </dev/null || fail "$whole: $(tail -2 err)"
    lasts[$whole]=$(($(date +%s%3N) - begun))
done

# killed: true if the run still ran at a moment drawn from its duration, and was killed with all of its ranks.
killed() {
    setsid "$weft" train run.yaml run.dir=killed "${words[@]}" >/dev/null 2>err </dev/null &
    local pid=$! wait_ms=$((RANDOM % lasts[$whole] + 20))
    sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
    if kill -KILL -- "-$pid" 2>/dev/null; then
        wait "$pid" 2>/dev/null
        return 0
    fi
    wait "$pid" || fail "a restart ended by itself: $(tail -2 err)"
    return 1
}

done_kills=0 number=0
while [ "$done_kills" -lt "$kills" ]; do
    sequence $((number += 1))
    slow
    rm -rf killed cache
    for _ in 1 2 3; do
        killed || break
        done_kills=$((done_kills + 1))
    done
    "$weft" train run.yaml run.dir=killed "${words[@]}" >out 2>err </dev/null || fail "sequence $number: $(tail -2 err)"
    [ "$(curve "$whole")" = "$(curve killed)" ] || fail "sequence $number: another curve: $(diff <(curve "$whole") <(curve killed) | head -4)"
    [ "$(digest "$whole")" = "$(digest killed)" ] || fail "sequence $number: other weights"
    exits 0 audit killed
    has out "was used exactly once"
done
echo "$done_kills kills in $number runs: the same curves, weights and samples"
