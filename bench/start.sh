#!/bin/sh
# Measures what a run takes besides its steps. Prints a table; each figure is the best of a few rounds:
#   - tokenizing on one thread; if PEER is a Python with the package `tokenizers`, that package too, for comparison;
#   - from `weft train` to the start of the first step of 125M, with a filled token cache;
#   - that run's checkpoint, and the start of a run that resumes from it, compared with dd writing and reading as many bytes (written to
#     the disk; read from the disk only if the page cache may be dropped, as root);
#   - `weft plan` for 16,384 ranks and 1,024 microbatches;
#   - steps of a model so small that the overhead around its ops dominates.
#
#     bench/start.sh TEXT TOKENIZER                      runs/demo-data has both after `make demo`
#     PEER=.venv-peer/bin/python bench/start.sh ...
#
# Variables: BUILD, OUT (on the disk to measure), ROUNDS.
set -euf
[ $# -eq 2 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 64; }
text=$1 tokenizer=$2 weft=${BUILD:-build}/weft out=${OUT:-runs/start} rounds=${ROUNDS:-3} here=$(dirname "$0")
said=$out/said.log
mkdir -p "$out"

row() { printf '%-60s %s\n' "$1" "$2"; }
minus() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f\n", a - b }'; }
over() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
quietly() { "$@" >"$said" 2>&1 || { tail -3 "$said" >&2; exit 1; }; }
# least COMMAND...: prints the smallest of the numbers that it prints over all rounds.
least() { for _ in $(seq "$rounds"); do "$@" || exit 1; done | sort -g | head -1; }
seconds() {
    began=$(date +%s.%N)
    quietly "$@"
    minus "$(date +%s.%N)" "$began"
}
# of KEY WHERE FILE: prints the number of KEY in the last line that matches WHERE.
of() { sed -n "/$2/s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$out/run/$3" | tail -1; }
forget_files() { { sync && echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || true; }

tokenize() {
    rm -rf "$out/cache"
    seconds "$weft" tokenize "$out/text.yaml" run.threads=1
}
peer_tokenizes() {
    TOKENIZERS_PARALLELISM=false "$PEER" - "$text" "$tokenizer" <<'END'
import sys, time, tokenizers
text = open(sys.argv[1]).read().split("\n\n")
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[2])
began = time.time()
for document in text:
    tokenizer.encode(document)
print(time.time() - began)
END
}
# train WORD...: trains 125M with small steps.
train() {
    "$weft" train "$out/text.yaml" run.dir="$out/run" checkpoint.every=0 metrics.tensorboard=false metrics.log_freq=1 \
        model.hidden_size=768 model.intermediate_size=2048 model.num_hidden_layers=12 model.num_attention_heads=12 \
        model.num_key_value_heads=12 model.vocab_size=32000 train.context=512 train.microbatch=1 train.tokens_per_step=512 "$@"
}
# Prints the seconds until this process begins its first step, which is also its last.
until_step() {
    began=$(date +%s.%N)
    quietly train "$@"
    minus "$(minus "$(of wall '"train"' metrics.jsonl)" "$(of step_seconds '"train"' metrics.jsonl)")" "$began"
}
# Starts a run in a new directory: removing an old checkpoint would take time too.
starts() {
    rm -rf "$out/run"
    until_step train.steps=1
}
# Resumes from a checkpoint, which is restored each time.
goes_on() {
    rm -rf "$out/run"
    cp -r "$out/kept" "$out/run"
    forget_files
    until_step train.steps=2 "run.allow_changes=[train.steps]"
}
saves() { starts >/dev/null && of seconds '"checkpoint"' journal.jsonl; }
dd_reads() {
    forget_files
    seconds dd if="$out/zeros" of=/dev/null bs=1M
}
tiny_steps() {
    quietly "$weft" train "$out/text.yaml" run.dir="$out/run" run.overwrite=true checkpoint.every=0 metrics.tensorboard=false \
        metrics.log_freq=2000 model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=2 model.num_attention_heads=2 \
        model.num_key_value_heads=2 train.context=8 train.microbatch=1 train.tokens_per_step=8 train.steps=4000
    over 8e6 "$(of tokens_per_second '"train"' metrics.jsonl)"
    echo
}

printf 'data: {sources: [{path: "%s", split: paragraphs}], tokenizer: "%s", cache_dir: "%s"}\n' "$text" "$tokenizer" "$out/cache" \
    >"$out/text.yaml"
bytes=$(wc -c <"$text")
row "tokenizing, start and cache included" "$(over "$bytes" "$(least tokenize)e6") MB/s"
[ -z "${PEER:-}" ] || row "  the package tokenizers, the encoding alone" "$(over "$bytes" "$(least peer_tokenizes)e6") MB/s"
row "until the first step of 125M" "$(least starts) s"
took=$(least saves)
size=$(of bytes '"checkpoint"' journal.jsonl)
rm -rf "$out/kept"
mv "$out/run" "$out/kept"
blocks=$((size / 1048576))
row "  its checkpoint, $blocks MiB" "$(minus "$took" 0) s"
row "  as much by dd, with fsync" "$(least seconds dd if=/dev/zero of="$out/zeros" bs=1M count=$blocks conv=fsync) s"
row "until the next step of a run that goes on from there" "$(least goes_on) s"
row "  as much read by dd" "$(least dd_reads) s"
rm -rf "$out/kept" "$out/run" "$out/zeros"
row "weft plan, 16,384 ranks, 1,024 microbatches" "$(least seconds "$weft" plan "$here/../configs/llama3-405b.yaml" -n 16384 mesh.pp=16 \
    mesh.tp=8 train.microbatch=1 pipeline.microbatches=1024 train.tokens_per_step=1073741824) s"
row "a step of a model of 16 x 2 layers, 8 tokens" "$(least tiny_steps) us"
